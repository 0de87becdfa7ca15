/*
 * MPI-IO of C, Fortran and mpi_f08.
 *
 * With --view=rank several ranks that open one path by MPI_File_open would each get a file of their own: the call is refused with an
 * MPI error. With --view=job MPI_File_sync also makes the data visible here that other ranks have synced, since an MPI library may
 * do nothing in a rank that has not written. MPI_File_close syncs the file before the library waits for the other ranks. While
 * a file is open that several ranks have opened by MPI, MPI_Barrier publishes what this rank has written, and refreshes what it sees:
 * programs such as HDF5 let one rank write, wait in a barrier, and let another rank write to the same bytes, as local file systems permit.
 * A collective write has such a barrier before and behind it. One that must not wait is made by each rank for itself.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose.h"

/* one_tree returns whether all ranks of the job share one tree (--view=job). */
static bool one_tree(void)
{
	const char *view = nv_initial_env("NVMECR_VIEW");

	return view != NULL && strcmp(view, "job") == 0;
}

/* reported returns whether it was called with the path before. It remembers the last 64 paths. */
static bool reported(const char *path)
{
	static uint64_t hashes[64];
	static unsigned count;
	uint64_t hash = UINT64_C(14695981039346656037);

	for (; *path != '\0'; path++)
		hash = (hash ^ (unsigned char)*path) * UINT64_C(1099511628211);
	for (unsigned i = 0; i < 64; i++)
		if (hashes[i] == hash)
			return true;
	hashes[count++ % 64] = hash;
	return false;
}

/* in_mount returns the path of a file name of MPI if it is in the mount; else NULL. A file name of ROMIO may begin with the name of a
 * driver and a colon. */
static const char *in_mount(const char *name)
{
	struct nv_path_at at;

	if (!nv_mounted || name == NULL)
		return NULL;
	const char *colon = strchr(name, ':'), *slash = strchr(name, '/');
	const char *path = colon != NULL && (slash == NULL || colon < slash) ? colon + 1 : name;

	return nv_route(AT_FDCWD, path, &at) ? path : NULL;
}

/* A file of the mount that several ranks have opened by MPI. */
struct shared {
	struct shared *next;
	void *file; /* C's handle; NULL: none, and the next file may take this place. The thread that opens or closes the file owns what
		     * follows */
	char *path;
	struct nv_communicator communicator; /* a duplicate of the one that has opened the file */
};

static struct shared *shared; /* grows only */
static unsigned shared_files; /* how many are open */

/* replaced replaces the handle of a place by another one, and returns the place; NULL if none has that handle. */
static struct shared *replaced(void *old, void *new)
{
	for (struct shared *s = __atomic_load_n(&shared, __ATOMIC_SEQ_CST); s != NULL; s = s->next) {
		void *expected = old;

		if (__atomic_compare_exchange_n(&s->file, &expected, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return s;
	}
	return NULL;
}

/* find_shared returns the place of a file; NULL if none has its handle. */
static struct shared *find_shared(void *file)
{
	return file != NULL ? replaced(file, file) : NULL;
}

/* handle_of returns C's handle of a file that has this handle in Fortran. */
static void *handle_of(int fortran)
{
	static void *(*convert)(int);

	if (convert == NULL)
		convert = (void *(*)(int))nv_find("MPI_File_f2c");
	return convert != NULL ? convert(fortran) : NULL;
}

/* forget removes a file that was closed without this library's knowledge, by a library for profiles for instance: a new file has its
 * handle. Its communicator is not freed, since that is a call of all of its ranks. */
static void forget(void *file)
{
	struct shared *s = find_shared(file);

	if (s == NULL)
		return;
	free(s->path);
	s->path = NULL;
	replaced(file, NULL);
	__atomic_sub_fetch(&shared_files, 1, __ATOMIC_SEQ_CST);
}

/* shared_opened remembers an open file. */
static void shared_opened(void *file, const char *path, struct nv_communicator communicator)
{
	struct shared *s = replaced(NULL, file);

	if (s == NULL) {
		s = calloc(1, sizeof *s);
		if (s == NULL) {
			nv_complain("no memory for the communicator of %s: the process ends, since others would wait for it", path);
			abort();
		}
		s->file = file;
		s->next = __atomic_load_n(&shared, __ATOMIC_SEQ_CST);
		while (!__atomic_compare_exchange_n(&shared, &s->next, s, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue;
	}
	s->path = strdup(path);
	s->communicator = communicator;
	__atomic_add_fetch(&shared_files, 1, __ATOMIC_SEQ_CST);
}

static void shared_closing(void *file)
{
	struct shared *s = find_shared(file);

	if (s == NULL)
		return;
	nv_comm_free(s->communicator);
	forget(file);
}

/* Two constants differ between the MPI libraries: the class of the error, and C's MPI_FILE_NULL, which is a variable in Open MPI and
 * 0 in MPICH. */
#define OPENMPI_FILE_NULL "ompi_mpi_file_null"
#define OPENMPI_UNSUPPORTED_OPERATION 52
#define MPICH_UNSUPPORTED_OPERATION 44

/* MPI_MODE_RDONLY and MPI_MODE_RDWR, which have the same values in all MPI libraries. Together they are an error. */
#define CONTRADICTORY (2 | 8)

/* no_file returns C's MPI_FILE_NULL. */
static void *no_file(void)
{
	void *none = dlsym(RTLD_DEFAULT, OPENMPI_FILE_NULL); /* the program may have a copy of the variable */

	return none != NULL ? none : nv_find_quietly(OPENMPI_FILE_NULL);
}

/* unsupported returns MPI_ERR_UNSUPPORTED_OPERATION. */
static int unsupported(void)
{
	return no_file() != NULL ? OPENMPI_UNSUPPORTED_OPERATION : MPICH_UNSUPPORTED_OPERATION;
}

/* refuse prints, once for each path, why opening it is refused. It waits for all ranks of the communicator: a rank whose call has failed
 * may abort the job, which would end rank 0 before it prints. */
static void refuse(const char *path, struct nv_communicator communicator, int ranks, int self)
{
	if (self == 0 && !reported(path))
		nv_complain("MPI_File_open of %s by %d ranks is refused: under %s each rank has files of its own (--view=rank); "
			    "open it by one rank (MPI_COMM_SELF), or use a store with --view=job",
			    path, ranks, nv_mount);
	nv_comm_barrier(communicator);
}

/* Number of the calls of this thread about files that call each other: a function of one language that calls that of another one. Only
 * the outermost has an effect. */
static __thread unsigned nested __attribute__((tls_model("initial-exec")));

/* opening is called before the library's MPI_File_open. It returns whether several ranks open a file of the mount. In one tree it then
 * duplicates the communicator, which may end before the file, and whose messages must not meet those of the barriers here. This is
 * done before the file is opened, since only some ranks may succeed in that. */
static bool opening(const char *path, struct nv_communicator communicator, struct nv_communicator *copy)
{
	int ranks, self;

	if (nested > 0 || path == NULL || !nv_comm_ranks(communicator, &ranks, &self) || ranks <= 1)
		return false;
	if (one_tree())
		*copy = nv_comm_dup(communicator);
	else
		refuse(path, communicator, ranks, self);
	return true;
}

/* opened is called behind the library's MPI_File_open. several: copy is the communicator of a file that several ranks open in one tree. */
static void opened(bool ok, bool several, void *file, const char *path, struct nv_communicator copy)
{
	if (nested > 0)
		return;
	if (ok)
		forget(file);
	if (ok && several)
		shared_opened(file, path, copy);
	else if (several)
		nv_comm_free(copy);
}

typedef int file_open(void *communicator, const char *name, int mode, void *info, void **file);

file_open nv_MPI_File_open NV_CALL("MPI_File_open");
int nv_MPI_File_open(void *communicator, const char *name, int mode, void *info, void **file)
{
	static file_open *real;
	struct nv_communicator copy = { .fortran = false };
	const char *path = in_mount(name);
	bool several = opening(path, (struct nv_communicator){ .pointer = communicator, .fortran = false }, &copy);
	int result = FAILED;

	if (real == NULL)
		real = (file_open *)nv_find("MPI_File_open");
	if (several && !one_tree()) {
		if (real != NULL) /* it fails, and calls the program's error handler for MPI_FILE_NULL */
			real(communicator, name, CONTRADICTORY, info, file);
		*file = no_file();
		return unsupported();
	}
	if (real != NULL)
		result = real(communicator, name, mode, info, file);
	opened(result == 0, several, *file, path, copy);
	return result;
}

typedef void file_open_fortran(const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror, size_t length);

/* trimmed copies a name that Fortran has padded with blanks. It returns NULL if the name is too long for a path. */
static const char *trimmed(const char *name, size_t length, char copy[NV_PATH])
{
	while (length > 0 && name[length - 1] == ' ')
		length--;
	if (length >= NV_PATH)
		return NULL;
	memcpy(copy, name, length);
	copy[length] = '\0';
	return copy;
}

static void open_fortran(file_open_fortran *real, const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror,
			 size_t length)
{
	static const int contradictory = CONTRADICTORY;
	char buffer[NV_PATH];
	struct nv_communicator copy = { .fortran = true };
	const char *path = in_mount(trimmed(name, length, buffer));
	bool several = opening(path, (struct nv_communicator){ .integer = *communicator, .fortran = true }, &copy);
	bool refused = several && !one_tree();
	int error = FAILED;

	/* Where the call fails, MPICH's function of mpi_f08 converts a handle that nobody has set. mpi_file_open_ calls MPI_File_open, which is
	 * interposed, too, and sets the handle. */
	if (refused)
		real = (file_open_fortran *)nv_find("mpi_file_open_");
	if (!refused)
		nested++;
	if (real != NULL)
		real(communicator, name, refused ? &contradictory : mode, info, file, &error, length);
	if (!refused)
		nested--;
	if (refused) {
		*file = 0; /* MPI_FILE_NULL in the Fortran of every library */
		error = unsupported();
	} else {
		opened(error == 0, several, error == 0 ? handle_of(*file) : NULL, path, copy);
	}
	if (ierror != NULL)
		*ierror = error;
}

#define FORTRAN_FILE_OPEN(symbol)                                                                                                      \
	file_open_fortran nv_##symbol NV_CALL(#symbol);                                                                                \
	void nv_##symbol(const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror, size_t length) \
	{                                                                                                                              \
		static file_open_fortran *real;                                                                                        \
                                                                                                                                       \
		if (real == NULL)                                                                                                      \
			real = (file_open_fortran *)nv_find(#symbol);                                                                  \
		open_fortran(real, communicator, name, mode, info, file, ierror, length);                                              \
	}

FORTRAN_FILE_OPEN(mpi_file_open_)
FORTRAN_FILE_OPEN(mpi_file_open_f08_)

/* ---- MPI_File_sync ---- */

static void synced(bool ok)
{
	int saved = errno;

	if (ok && nv_mounted && one_tree() && nv_loaded())
		rt_syncfs(); /* what cannot be synced is reported by the library's MPI_File_sync, or by the close */
	errno = saved;
}

C_FUNCTION(MPI_File_sync, , synced, (void *file), file)
FORTRAN_FUNCTION(mpi_file_sync_, , synced, (int *file, int *ierror), file, &result)
FORTRAN_FUNCTION(mpi_file_sync_f08_, , synced, (int *file, int *ierror), file, &result)

/* ---- MPI_File_close ---- */

static void closed(bool ok)
{
	(void)ok;
	nested--;
}

/* In MPI_File_close the libraries first wait for all ranks, then each rank closes the file. A rank that has returned may open the
 * file, and must find the data of all others. So each rank syncs before it waits. */
static void closing(void *file)
{
	if (nested++ > 0)
		return;
	synced(true);
	shared_closing(file);
}

C_FUNCTION(MPI_File_close, closing(*file), closed, (void **file), file)
FORTRAN_FUNCTION(mpi_file_close_, closing(handle_of(*file)), closed, (int *file, int *ierror), file, &result)
FORTRAN_FUNCTION(mpi_file_close_f08_, closing(handle_of(*file)), closed, (int *file, int *ierror), file, &result)

/* ---- MPI_File_preallocate ---- */

/* ROMIO has one rank write zeros, which would replace what others write before that rank closes the file. So each rank extends the file. A
 * negative result is that of the library's function. */
static int preallocate(void *file, int64_t size)
{
	struct shared *s = find_shared(file);
	int fd, error;

	if (s == NULL || s->path == NULL)
		return -1;
	fd = open(s->path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	error = posix_fallocate(fd, 0, size);
	if (close(fd) != 0 || error != 0)
		return FAILED;
	return 0;
}

typedef int file_preallocate(void *file, int64_t size);
file_preallocate nv_MPI_File_preallocate NV_CALL("MPI_File_preallocate");
int nv_MPI_File_preallocate(void *file, int64_t size)
{
	static file_preallocate *real;
	int result = size > 0 ? preallocate(file, size) : -1;

	if (real == NULL)
		real = (file_preallocate *)nv_find("MPI_File_preallocate");
	return result >= 0 ? result : real != NULL ? real(file, size) : FAILED;
}

#define FORTRAN_PREALLOCATE(symbol)                                                                                       \
	void nv_##symbol(const int *file, const int64_t *size, int *ierror) NV_CALL(#symbol);                             \
	void nv_##symbol(const int *file, const int64_t *size, int *ierror)                                               \
	{                                                                                                                 \
		static void (*real)(const int *, const int64_t *, int *);                                                 \
		int result = *size > 0 ? preallocate(handle_of(*file), *size) : -1;                               \
                                                                                                                          \
		if (real == NULL)                                                                                         \
			real = (void (*)(const int *, const int64_t *, int *))nv_find(#symbol);                           \
		if (result < 0 && real != NULL)                                                                           \
			real(file, size, &result);                                                                        \
		if (ierror != NULL)                                                                                       \
			*ierror = result >= 0 ? result : FAILED;                                                          \
	}

FORTRAN_PREALLOCATE(mpi_file_preallocate_)
FORTRAN_PREALLOCATE(mpi_file_preallocate_f08_)

/* ---- MPI_Barrier ---- */

static void exchange(bool entering)
{
	int saved = errno;

	if (__atomic_load_n(&shared_files, __ATOMIC_SEQ_CST) > 0 && one_tree() && nv_loaded())
		rt_barrier(entering); /* what cannot be published is reported by the next sync or close */
	errno = saved;
}

static void waited(bool ok)
{
	(void)ok;
	exchange(false);
}

C_FUNCTION(MPI_Barrier, exchange(true), waited, (void *communicator), communicator)
FORTRAN_FUNCTION(mpi_barrier_, exchange(true), waited, (int *communicator, int *ierror), communicator, &result)
FORTRAN_FUNCTION(mpi_barrier_f08_, exchange(true), waited, (int *communicator, int *ierror), communicator, &result)

/* ---- Collective writes ---- */

/* A rank that writes for others reads the bytes between theirs, and writes them back, old or new. So all ranks publish before the
 * library's call, which must not read old bytes, and behind it, since another rank may then write between those bytes and publish first. */
static __thread struct shared *written __attribute__((tls_model("initial-exec")));

static void exchange_with_all(void)
{
	if (written == NULL)
		return;
	exchange(true);
	nv_comm_barrier(written->communicator);
	exchange(false);
}

static void writing(void *file)
{
	if (nested++ > 0)
		return;
	written = find_shared(file);
	exchange_with_all();
}

/* wrote: the others wait here also if the call has failed in this rank. */
static void wrote(bool ok)
{
	(void)ok;
	if (--nested == 0)
		exchange_with_all();
}

#define C_WRITE(symbol, count_type)                                                                                                           \
	C_FUNCTION(symbol, writing(file), wrote, (void *file, const void *data, count_type count, void *datatype, void *status), file, data, \
		   count, datatype, status)
#define C_WRITE_AT(symbol, count_type)                                                                                               \
	C_FUNCTION(symbol, writing(file), wrote,                                                                                     \
		   (void *file, int64_t offset, const void *data, count_type count, void *datatype, void *status), file, offset, data, count, \
		   datatype, status)
#define C_BEGIN(symbol, count_type)                                                                                                        \
	C_FUNCTION(symbol, writing(file), wrote, (void *file, const void *data, count_type count, void *datatype), file, data, count, datatype)
#define C_BEGIN_AT(symbol, count_type)                                                                                                          \
	C_FUNCTION(symbol, writing(file), wrote, (void *file, int64_t offset, const void *data, count_type count, void *datatype), file, offset, \
		   data, count, datatype)

/* The names that end in _c take a 64-bit MPI_Count. */
#define C_WRITES(suffix, count_type)                                   \
	C_WRITE(MPI_File_write_all##suffix, count_type)                \
	C_WRITE(MPI_File_write_ordered##suffix, count_type)            \
	C_WRITE_AT(MPI_File_write_at_all##suffix, count_type)          \
	C_BEGIN(MPI_File_write_all_begin##suffix, count_type)          \
	C_BEGIN(MPI_File_write_ordered_begin##suffix, count_type)      \
	C_BEGIN_AT(MPI_File_write_at_all_begin##suffix, count_type)

C_WRITES(, int)
C_WRITES(_c, int64_t)

#define FORTRAN_HANDLE handle_of(*file)
#define FORTRAN_WRITE(symbol)                                                                                                        \
	FORTRAN_FUNCTION(symbol, writing(FORTRAN_HANDLE), wrote,                                                                     \
			 (int *file, void *data, void *count, void *datatype, void *status, int *ierror), file, data, count, datatype, status, \
			 &result)
#define FORTRAN_WRITE_AT(symbol)                                                                                                    \
	FORTRAN_FUNCTION(symbol, writing(FORTRAN_HANDLE), wrote,                                                                    \
			 (int *file, void *offset, void *data, void *count, void *datatype, void *status, int *ierror), file, offset, data, \
			 count, datatype, status, &result)
#define FORTRAN_BEGIN(symbol)                                                                                                              \
	FORTRAN_FUNCTION(symbol, writing(FORTRAN_HANDLE), wrote, (int *file, void *data, void *count, void *datatype, int *ierror), file, data, \
			 count, datatype, &result)
#define FORTRAN_BEGIN_AT(symbol)                                                                                                   \
	FORTRAN_FUNCTION(symbol, writing(FORTRAN_HANDLE), wrote,                                                                   \
			 (int *file, void *offset, void *data, void *count, void *datatype, int *ierror), file, offset, data, count, datatype, \
			 &result)

#define FORTRAN_WRITES(suffix)                                     \
	FORTRAN_WRITE(mpi_file_write_all##suffix)                  \
	FORTRAN_WRITE(mpi_file_write_ordered##suffix)              \
	FORTRAN_WRITE_AT(mpi_file_write_at_all##suffix)            \
	FORTRAN_BEGIN(mpi_file_write_all_begin##suffix)            \
	FORTRAN_BEGIN(mpi_file_write_ordered_begin##suffix)        \
	FORTRAN_BEGIN_AT(mpi_file_write_at_all_begin##suffix)

FORTRAN_WRITES(_)
FORTRAN_WRITES(_f08_)
FORTRAN_WRITES(_f08ts_)

/* ---- Collective writes that do not wait ---- */

/* MPI_File_iwrite_all must not wait for other ranks, so it cannot have a barrier. Each rank writes its bytes by MPI_File_iwrite, by
 * which no rank writes for others. The content of the file, the file pointers and the request are the same. */

/* alone returns the function to call for the collective one: the independent one, if several ranks have the file of the mount open. */
static void *alone(void *file, void *found[2], const char *collective, const char *independent)
{
	bool own = find_shared(file) != NULL;

	if (found[own] == NULL)
		found[own] = nv_find(own ? independent : collective);
	return found[own];
}

#define C_IWRITE(symbol, independent, parameters, ...)                                           \
	int nv_##symbol parameters NV_CALL(#symbol);                                              \
	int nv_##symbol parameters                                                                \
	{                                                                                         \
		static void *found[2];                                                            \
		int(*call) parameters = (int(*) parameters)alone(file, found, #symbol, #independent); \
                                                                                                  \
		return call != NULL ? call(__VA_ARGS__) : FAILED;                                 \
	}

#define C_IWRITES(suffix, count_type)                                                                                             \
	C_IWRITE(MPI_File_iwrite_all##suffix, MPI_File_iwrite##suffix,                                                            \
		 (void *file, const void *data, count_type count, void *datatype, void *request), file, data, count, datatype, request) \
	C_IWRITE(MPI_File_iwrite_at_all##suffix, MPI_File_iwrite_at##suffix,                                                      \
		 (void *file, int64_t offset, const void *data, count_type count, void *datatype, void *request), file, offset, data, count, \
		 datatype, request)

C_IWRITES(, int)
C_IWRITES(_c, int64_t)

/* Those of MPICH's Fortran call C's, those of Open MPI's do not. */
#define FORTRAN_IWRITE(symbol, independent, parameters, ...)                                                         \
	void nv_##symbol parameters NV_CALL(#symbol);                                                                \
	void nv_##symbol parameters                                                                                  \
	{                                                                                                            \
		static void *found[2];                                                                               \
		void(*call) parameters = (void(*) parameters)alone(handle_of(*file), found, #symbol, #independent); \
                                                                                                                     \
		if (call != NULL)                                                                                    \
			call(__VA_ARGS__);                                                                           \
		else if (ierror != NULL)                                                                             \
			*ierror = FAILED;                                                                            \
	}

#define FORTRAN_IWRITES(suffix)                                                                                                       \
	FORTRAN_IWRITE(mpi_file_iwrite_all##suffix, mpi_file_iwrite##suffix,                                                          \
		       (int *file, void *data, void *count, void *datatype, void *request, int *ierror), file, data, count, datatype, request, \
		       ierror)                                                                                                        \
	FORTRAN_IWRITE(mpi_file_iwrite_at_all##suffix, mpi_file_iwrite_at##suffix,                                                    \
		       (int *file, void *offset, void *data, void *count, void *datatype, void *request, int *ierror), file, offset, data, \
		       count, datatype, request, ierror)

FORTRAN_IWRITES(_)
FORTRAN_IWRITES(_f08_)
