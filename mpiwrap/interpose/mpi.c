/*
 * MPI_Init, MPI_Init_thread and MPI_Finalize of C, Fortran and mpi_f08, of any
 * MPI library: after the real MPI_Init has returned the runtime opens the
 * rank's partition, before the real MPI_Finalize it lets go of MPI.
 *
 * MPI_File_open of a file of ours by several ranks is refused with an MPI error where each
 * of them would get a file of its own. In the tree of the job MPI_File_sync sees to it that this process
 * sees what others have synced, also where the library, which has written nothing here, does nothing, and
 * MPI_File_close returns when all ranks have synced.
 *
 * No MPI header is used: these functions take pointers and integers in every
 * MPI. One binding may call another (MPICH's Fortran calls its C), so only the
 * outermost call counts.
 */
#include <dlfcn.h>
#include <string.h>

#include "../../posixshim/shim/nv.h"

/* How deep the process is in these functions. MPI allows one thread here. */
static int depth;

/* The libraries an MPI_Init may hide in when it was loaded with RTLD_LOCAL,
 * as Python does. */
static const char *const libraries[] = {
	"libmpi.so.40",
	"libmpi_mpifh.so.40",
	"libmpi_usempif08.so.40",
	"libmpich.so.12",
	"libmpichfort.so.12",
	"libmpi.so.12",
	"libmpifort.so.12",
};

/* find_quietly returns a symbol of the MPI library; NULL if there is none. */
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

/* begin and end enclose the real MPI_Init; ok says that it succeeded. */
static void begin(void)
{
	depth++;
}

static void end(bool ok)
{
	if (--depth == 0 && ok)
		nv_mpi_ready();
}

/* Other errors than MPI_SUCCESS, 0, differ between libraries; this is
 * MPI_ERR_OTHER in most. */
#define FAILED 15

/* C_FUNCTION and FORTRAN_FUNCTION define one interposed function, by its symbol. */

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

/* The last argument of a Fortran function, ierror, is where the result goes;
 * in mpi_f08 it may be absent. */
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

/* one_tree says that the ranks of the job have one tree. */
static bool one_tree(void)
{
	const char *view = nv_initial_env("NVMECR_VIEW");

	return view != NULL && strcmp(view, "job") == 0;
}

/* said tells whether a path is new here; it forgets the oldest of many. */
static bool said(const char *path)
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

/* ours says whether an MPI name of a file is, and of this rank alone. ROMIO's may begin with a driver's. */
static const char *ours(const char *name)
{
	struct nv_path_at at;

	if (!nv_mounted || name == NULL || one_tree())
		return NULL;
	const char *colon = strchr(name, ':'), *slash = strchr(name, '/');
	const char *path = colon != NULL && (slash == NULL || colon < slash) ? colon + 1 : name;

	return nv_route(AT_FDCWD, path, &at) ? path : NULL;
}

/* What the MPI libraries do not share: the class of the error, and in C the file that is
 * none, which is a variable of OpenMPI's and 0 in MPICH. */
#define OPENMPI_FILE_NULL "ompi_mpi_file_null"
#define OPENMPI_UNSUPPORTED_OPERATION 52
#define MPICH_UNSUPPORTED_OPERATION 44

/* These bits are the same in all: MPI_MODE_RDONLY and MPI_MODE_RDWR. */
#define CONTRADICTORY (2 | 8)

/* no_file is C's MPI_FILE_NULL. */
static void *no_file(void)
{
	void *none = dlsym(RTLD_DEFAULT, OPENMPI_FILE_NULL); /* it may have been copied to the program */

	return none != NULL ? none : find_quietly(OPENMPI_FILE_NULL);
}

/* unsupported is MPI_ERR_UNSUPPORTED_OPERATION. */
static int unsupported(void)
{
	return no_file() != NULL ? OPENMPI_UNSUPPORTED_OPERATION : MPICH_UNSUPPORTED_OPERATION;
}

/* tell says once for each path why it is refused. */
static void tell(const char *path, int ranks, int self)
{
	if (self == 0 && !said(path))
		nv_complain("MPI_File_open of %s by %d ranks is refused: under %s each rank has files of its own; "
			    "open it by one rank (MPI_COMM_SELF), or one that is elsewhere",
			    path, ranks, nv_mount);
}

typedef int about_communicator(void *communicator, int *number);
typedef int file_open(void *communicator, const char *name, int mode, void *info, void **file);

file_open nv_MPI_File_open NV_CALL("MPI_File_open");
int nv_MPI_File_open(void *communicator, const char *name, int mode, void *info, void **file)
{
	static file_open *real;
	static about_communicator *size, *rank;
	const char *path = ours(name);
	int ranks = 1, self = 0;

	if (real == NULL)
		real = (file_open *)find("MPI_File_open");
	if (path != NULL && size == NULL)
		size = (about_communicator *)find("MPI_Comm_size");
	if (path != NULL && rank == NULL)
		rank = (about_communicator *)find("MPI_Comm_rank");
	/* What is wrong with a communicator the real call says. */
	if (size != NULL && rank != NULL && path != NULL && size(communicator, &ranks) == 0 && ranks > 1 && rank(communicator, &self) == 0) {
		tell(path, ranks, self);
		if (real != NULL) /* calls the error handler that the program has for files that are none */
			real(communicator, name, CONTRADICTORY, info, file);
		*file = no_file();
		return unsupported();
	}
	return real != NULL ? real(communicator, name, mode, info, file) : FAILED;
}

/* shared_fortran says whether several ranks open a file of ours, by a communicator of
 * Fortran's. The name ends in blanks. */
static bool shared_fortran(const int *communicator, const char *name, size_t length)
{
	static void (*size)(const int *, int *, int *), (*rank)(const int *, int *, int *);
	int ranks = 1, self = 0, error = 0;
	char copy[NV_PATH];

	while (length > 0 && name[length - 1] == ' ')
		length--;
	if (!nv_mounted || length >= sizeof copy)
		return false;
	memcpy(copy, name, length);
	copy[length] = '\0';
	const char *path = ours(copy);

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
	tell(path, ranks, self);
	return true;
}

typedef void file_open_fortran(const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror, size_t length);

static void open_fortran(file_open_fortran *real, const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror,
			 size_t length)
{
	static const int contradictory = CONTRADICTORY;
	bool shared = shared_fortran(communicator, name, length);
	int error = FAILED;

	if (real != NULL)
		real(communicator, name, shared ? &contradictory : mode, info, file, &error, length);
	if (shared) {
		*file = 0; /* MPI_FILE_NULL of every library's Fortran */
		error = unsupported();
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
		rt_syncfs(); /* its errors the real call has told */
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

/* The libraries wait for all ranks first, then each closes its file. A rank that is through opens the file and has
 * to find what the others have written, so it is synced before they wait. */
C_FUNCTION(MPI_File_close, synced(true), closed, (void **file), file)
FORTRAN_FUNCTION(mpi_file_close_, synced(true), closed, (int *file, int *ierror), file, &result)
FORTRAN_FUNCTION(mpi_file_close_f08_, synced(true), closed, (int *file, int *ierror), file, &result)

#define FORTRAN_ALL(init, init_thread, finalize)                                                        \
	FORTRAN_FUNCTION(init, begin(), end, (int *ierror), &result)                                    \
	FORTRAN_FUNCTION(init_thread, begin(), end, (int *required, int *provided, int *ierror), required, provided, &result) \
	FORTRAN_FUNCTION(finalize, leaving(), left, (int *ierror), &result)

FORTRAN_ALL(mpi_init_, mpi_init_thread_, mpi_finalize_)
FORTRAN_ALL(mpi_init_f08_, mpi_init_thread_f08_, mpi_finalize_f08_)
FORTRAN_ALL(mpi_init, mpi_init_thread, mpi_finalize)
FORTRAN_ALL(mpi_init__, mpi_init_thread__, mpi_finalize__)
FORTRAN_ALL(MPI_INIT, MPI_INIT_THREAD, MPI_FINALIZE)
