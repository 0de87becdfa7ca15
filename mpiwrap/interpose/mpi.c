/*
 * MPI_Init, MPI_Init_thread and MPI_Finalize of C, Fortran and mpi_f08, for any MPI library. After the library's MPI_Init has
 * returned, the runtime opens the rank's partition. Before the library's MPI_Finalize the runtime stops using MPI.
 *
 * With --view=rank several ranks that open one path by MPI_File_open would each get a file of their own: the call is refused with an
 * MPI error. With --view=job MPI_File_sync also makes the data visible here that other ranks have synced, since an MPI library may
 * do nothing in a rank that has not written. MPI_File_close syncs the file before the library waits for the other ranks. While
 * a file is open that several ranks have opened by MPI, MPI_Barrier publishes what this rank has written, and refreshes what it sees:
 * programs such as HDF5 let one rank write, wait in a barrier, and let another rank write to the same bytes, as local file systems permit.
 *
 * No MPI header is included: the arguments of these functions are pointers and integers in every MPI library. A function of one
 * language may call that of another one (MPICH's Fortran calls its C), so only the outermost call has an effect.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../posixshim/shim/nv.h"

/* Number of nested calls of these functions. MPI allows only one thread to call them. */
static int depth;

/* MPI libraries. If one was loaded with RTLD_LOCAL, as Python does, dlsym(RTLD_NEXT) does not find its functions. */
static const char *const libraries[] = {
	"libmpi.so.40",
	"libmpi_mpifh.so.40",
	"libmpi_usempif08.so.40",
	"libmpich.so.12",
	"libmpichfort.so.12",
	"libmpi.so.12",
	"libmpifort.so.12",
};

/* find_quietly returns a symbol of the MPI library, or NULL. */
static void *find_quietly(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	for (size_t i = 0; f == NULL && i < sizeof libraries / sizeof *libraries; i++) {
		void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);

		if (library != NULL) {
			f = dlsym(library, name);
			dlclose(library);
		}
	}
	return f;
}

static void *find(const char *name)
{
	void *f = find_quietly(name);

	if (f == NULL)
		nv_complain("%s was called, but no MPI library that is loaded has it", name);
	return f;
}

/* begin is called before the library's MPI_Init, end after it. ok: it has succeeded. */
static void begin(void)
{
	depth++;
}

static void end(bool ok)
{
	if (--depth == 0 && ok)
		nv_mpi_ready();
}

/* MPI_ERR_OTHER of most libraries. Only MPI_SUCCESS, 0, is the same in all of them. */
#define FAILED 15

/* C_FUNCTION and FORTRAN_FUNCTION define the interposed function of a symbol. */

#define C_FUNCTION(symbol, before, after, parameters, ...)                  \
	int nv_##symbol parameters NV_CALL(#symbol);                        \
	int nv_##symbol parameters                                          \
	{                                                                   \
		static int(*real) parameters;                               \
		int result = FAILED;                                        \
                                                                            \
		if (real == NULL)                                           \
			real = (int(*) parameters)find(#symbol);            \
		before;                                                     \
		if (real != NULL)                                           \
			result = real(__VA_ARGS__);                         \
		after(result == 0);                                         \
		return result;                                              \
	}

/* Fortran functions store their result in their last argument, ierror, which is optional in mpi_f08. */
#define FORTRAN_FUNCTION(symbol, before, after, parameters, ...)            \
	void nv_##symbol parameters NV_CALL(#symbol);                       \
	void nv_##symbol parameters                                         \
	{                                                                   \
		static void(*real) parameters;                              \
		int result = FAILED;                                        \
                                                                            \
		if (real == NULL)                                           \
			real = (void(*) parameters)find(#symbol);           \
		before;                                                     \
		if (real != NULL)                                           \
			real(__VA_ARGS__);                                  \
		if (ierror != NULL)                                         \
			*ierror = result;                                   \
		after(result == 0);                                         \
	}

static void leaving(void)
{
	if (depth++ == 0)
		nv_mpi_ending();
}

static void left(bool ok)
{
	(void)ok;
	depth--;
}

C_FUNCTION(MPI_Init, begin(), end, (int *argc, char ***argv), argc, argv)
C_FUNCTION(MPI_Init_thread, begin(), end, (int *argc, char ***argv, int required, int *provided), argc, argv, required, provided)
C_FUNCTION(MPI_Finalize, leaving(), left, (void))

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

/* Files of the mount that several ranks have opened by MPI: a handle of C, or one of Fortran. */
#define SHARED 256
static struct {
	void *file; /* NULL: none. The thread that opens or closes the file owns path */
	char *path;
} shared[SHARED];
static unsigned shared_files; /* how many are open, also those that are not in shared for lack of space */

/* replaced replaces the handle of a place by another one, and returns the place; -1 if none has that handle. */
static int replaced(void *old, void *new)
{
	for (int i = 0; i < SHARED; i++) {
		void *expected = old;

		if (__atomic_compare_exchange_n(&shared[i].file, &expected, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return i;
	}
	return -1;
}

static void shared_opened(void *file, const char *path)
{
	int i = file != NULL ? replaced(NULL, file) : -1;

	__atomic_add_fetch(&shared_files, 1, __ATOMIC_SEQ_CST);
	if (i >= 0)
		shared[i].path = strdup(path);
}

static void shared_closing(void *file)
{
	int i = file != NULL ? replaced(file, file) : -1;

	if (i < 0)
		return;
	free(shared[i].path);
	shared[i].path = NULL;
	replaced(file, NULL);
	__atomic_sub_fetch(&shared_files, 1, __ATOMIC_SEQ_CST);
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

	return none != NULL ? none : find_quietly(OPENMPI_FILE_NULL);
}

/* unsupported returns MPI_ERR_UNSUPPORTED_OPERATION. */
static int unsupported(void)
{
	return no_file() != NULL ? OPENMPI_UNSUPPORTED_OPERATION : MPICH_UNSUPPORTED_OPERATION;
}

/* report prints, once for each path, why opening it is refused. The caller then waits for all ranks of the communicator: a rank whose
 * call has failed may abort the job, which would end rank 0 before it prints. */
static void report(const char *path, int ranks, int self)
{
	if (self == 0 && !reported(path))
		nv_complain("MPI_File_open of %s by %d ranks is refused: under %s each rank has files of its own (--view=rank); "
			    "open it by one rank (MPI_COMM_SELF), or use a store with --view=job",
			    path, ranks, nv_mount);
}

typedef int about_communicator(void *communicator, int *number);
typedef int file_open(void *communicator, const char *name, int mode, void *info, void **file);

file_open nv_MPI_File_open NV_CALL("MPI_File_open");
int nv_MPI_File_open(void *communicator, const char *name, int mode, void *info, void **file)
{
	static file_open *real;
	static about_communicator *size, *rank;
	static int (*barrier)(void *);
	const char *path = in_mount(name);
	int ranks = 1, self = 0, result = FAILED;

	if (real == NULL)
		real = (file_open *)find("MPI_File_open");
	if (path != NULL && size == NULL)
		size = (about_communicator *)find("MPI_Comm_size");
	if (path != NULL && rank == NULL)
		rank = (about_communicator *)find("MPI_Comm_rank");
	/* The library's function returns the error of an invalid communicator. */
	if (size != NULL && rank != NULL && path != NULL && (size(communicator, &ranks) != 0 || rank(communicator, &self) != 0))
		ranks = 1;
	if (ranks > 1 && !one_tree()) {
		report(path, ranks, self);
		if (barrier == NULL)
			barrier = (int (*)(void *))find("MPI_Barrier");
		if (barrier != NULL)
			barrier(communicator);
		if (real != NULL) /* it fails, and calls the program's error handler for MPI_FILE_NULL */
			real(communicator, name, CONTRADICTORY, info, file);
		*file = no_file();
		return unsupported();
	}
	if (real != NULL)
		result = real(communicator, name, mode, info, file);
	if (result == 0 && ranks > 1)
		shared_opened(*file, path);
	return result;
}

/* shared_fortran returns whether several ranks open a file of the mount by a communicator of Fortran. The name is padded with blanks;
 * copy gets it without them. */
static bool shared_fortran(const int *communicator, const char *name, size_t length, char copy[NV_PATH])
{
	static void (*size)(const int *, int *, int *), (*rank)(const int *, int *, int *), (*barrier)(const int *, int *);
	int ranks = 1, self = 0, error = 0;

	while (length > 0 && name[length - 1] == ' ')
		length--;
	if (!nv_mounted || length >= NV_PATH)
		return false;
	memcpy(copy, name, length);
	copy[length] = '\0';
	const char *path = in_mount(copy);

	if (path == NULL)
		return false;
	if (size == NULL)
		size = (void (*)(const int *, int *, int *))find("mpi_comm_size_");
	if (rank == NULL)
		rank = (void (*)(const int *, int *, int *))find("mpi_comm_rank_");
	if (size == NULL || rank == NULL)
		return false;
	size(communicator, &ranks, &error);
	rank(communicator, &self, &error);
	if (error != 0 || ranks <= 1)
		return false;
	if (!one_tree()) {
		report(path, ranks, self);
		if (barrier == NULL)
			barrier = (void (*)(const int *, int *))find("mpi_barrier_");
		if (barrier != NULL)
			barrier(communicator, &error);
	}
	return true;
}

typedef void file_open_fortran(const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror, size_t length);

static void open_fortran(file_open_fortran *real, const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror,
			 size_t length)
{
	static const int contradictory = CONTRADICTORY;
	char path[NV_PATH];
	bool several = shared_fortran(communicator, name, length, path), refused = several && !one_tree();
	int error = FAILED;

	/* Where the call fails, MPICH's function of mpi_f08 converts a handle that nobody has set. mpi_file_open_ calls MPI_File_open, which is
	 * interposed, too, and sets the handle. */
	if (refused)
		real = (file_open_fortran *)find("mpi_file_open_");
	if (real != NULL)
		real(communicator, name, refused ? &contradictory : mode, info, file, &error, length);
	if (refused) {
		*file = 0; /* MPI_FILE_NULL in the Fortran of every library */
		error = unsupported();
	} else if (several && error == 0) {
		shared_opened((void *)(uintptr_t)*file, in_mount(path));
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
			real = (file_open_fortran *)find(#symbol);                                                                     \
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
}

/* In MPI_File_close the libraries first wait for all ranks, then each rank closes the file. A rank that has returned may open the
 * file, and must find the data of all others. So each rank syncs before it waits. */
static void closing(void *file)
{
	synced(true);
	shared_closing(file);
}

C_FUNCTION(MPI_File_close, closing(*file), closed, (void **file), file)
FORTRAN_FUNCTION(mpi_file_close_, closing((void *)(uintptr_t)*file), closed, (int *file, int *ierror), file, &result)
FORTRAN_FUNCTION(mpi_file_close_f08_, closing((void *)(uintptr_t)*file), closed, (int *file, int *ierror), file, &result)

/* ---- MPI_File_preallocate ---- */

/* ROMIO has one rank write zeros, which would replace what others write before that rank closes the file. So each rank extends the file. A
 * negative result is that of the library's function. */
static int preallocate(void *file, int64_t size)
{
	int i = file != NULL ? replaced(file, file) : -1, fd, error;

	if (i < 0 || shared[i].path == NULL)
		return -1;
	fd = open(shared[i].path, O_WRONLY | O_CLOEXEC);
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
		real = (file_preallocate *)find("MPI_File_preallocate");
	return result >= 0 ? result : real != NULL ? real(file, size) : FAILED;
}

#define FORTRAN_PREALLOCATE(symbol)                                                                                       \
	void nv_##symbol(const int *file, const int64_t *size, int *ierror) NV_CALL(#symbol);                             \
	void nv_##symbol(const int *file, const int64_t *size, int *ierror)                                               \
	{                                                                                                                 \
		static void (*real)(const int *, const int64_t *, int *);                                                 \
		int result = *size > 0 ? preallocate((void *)(uintptr_t)*file, *size) : -1;                               \
                                                                                                                          \
		if (real == NULL)                                                                                         \
			real = (void (*)(const int *, const int64_t *, int *))find(#symbol);                              \
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

#define FORTRAN_ALL(init, init_thread, finalize)                                                        \
	FORTRAN_FUNCTION(init, begin(), end, (int *ierror), &result)                                    \
	FORTRAN_FUNCTION(init_thread, begin(), end, (int *required, int *provided, int *ierror), required, provided, &result) \
	FORTRAN_FUNCTION(finalize, leaving(), left, (int *ierror), &result)

FORTRAN_ALL(mpi_init_, mpi_init_thread_, mpi_finalize_)
FORTRAN_ALL(mpi_init_f08_, mpi_init_thread_f08_, mpi_finalize_f08_)
FORTRAN_ALL(mpi_init, mpi_init_thread, mpi_finalize)
FORTRAN_ALL(mpi_init__, mpi_init_thread__, mpi_finalize__)
FORTRAN_ALL(MPI_INIT, MPI_INIT_THREAD, MPI_FINALIZE)
