/*
 * MPI_Init, MPI_Init_thread and MPI_Finalize of C, Fortran and mpi_f08, of any
 * MPI library: after the real MPI_Init has returned the runtime opens the
 * rank's partition, before the real MPI_Finalize it lets go of MPI.
 *
 * MPI_File_open of a file of ours opens it for the rank alone, whatever the
 * communicator is, and says so once if several ranks write. If some of them have
 * the file, the others make it: rank 0 may have done so for all.
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

/* These bits are the same in OpenMPI and MPICH: MPI_MODE_CREATE; MPI_MODE_WRONLY, MPI_MODE_RDWR. */
#define MODE_CREATE 1
#define MODE_WRITES (4 | 8)

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

/* A communicator is a pointer or an int: either is passed on as it came. */
typedef int about_communicator(void *communicator, int *number);

/* ours says whether an MPI name of a file is. ROMIO's may begin with a driver's. */
static const char *ours(const char *name)
{
	struct nv_place at;

	if (!nv_mounted || name == NULL)
		return NULL;
	const char *colon = strchr(name, ':'), *slash = strchr(name, '/');
	const char *path = colon != NULL && (slash == NULL || colon < slash) ? colon + 1 : name;

	return nv_route(AT_FDCWD, path, &at) ? path : NULL;
}

/* tell says once for each path that ranks do not share the file. */
static void tell(const char *path, int ranks, int self, int mode)
{
	if (ranks > 1 && self == 0 && (mode & MODE_WRITES) && !said(path))
		nv_complain("%s is opened by %d ranks for writing: under %s each of them has a file of its own by that name",
			    path, ranks, nv_mount);
}

/* MPICH's MPI_COMM_SELF, in C and Fortran; that of OpenMPI is a variable in C
 * and 1 in Fortran. */
#define MPICH_SELF 0x44000001
#define OPENMPI "ompi_mpi_comm_self"

/* alone returns the communicator to open a file of ours by: that of the rank
 * itself. With another one some library calls would wait for, and fail by, what
 * rank 0 has created and the others do not have. */
static void *alone(void *communicator, const char *name, int mode)
{
	static about_communicator *size, *rank;
	const char *path = ours(name);
	int ranks = 1, self = -1;

	if (path == NULL)
		return communicator;
	if (size == NULL)
		size = (about_communicator *)find("MPI_Comm_size");
	if (rank == NULL)
		rank = (about_communicator *)find("MPI_Comm_rank");
	if (size == NULL || rank == NULL || size(communicator, &ranks) != 0 || rank(communicator, &self) != 0)
		return communicator; /* the real call says what is wrong */
	tell(path, ranks, self, mode);
	void *own = dlsym(RTLD_DEFAULT, OPENMPI); /* a variable may have been copied to the program */

	if (own == NULL)
		own = find_quietly(OPENMPI);

	return own != NULL ? own : (void *)(uintptr_t)MPICH_SELF;
}

/* to_make says whether ranks are to be asked about a file that one of them may
 * have made for all. */
static bool to_make(bool ours, int mode)
{
	return ours && (mode & MODE_WRITES) && !(mode & MODE_CREATE);
}

/* others_have says that this rank could not open a file and another one could.
 * All ranks call it: the split of those who could from those who could not
 * tells how many there are, whatever the types of the MPI library are. */
static bool others_have(void *communicator, bool opened)
{
	static int (*split)(void *, int, int, void **), (*release)(void **);
	static about_communicator *size;
	void *part = NULL;
	int all = 0, alike = 0;

	if (split == NULL)
		split = (int (*)(void *, int, int, void **))find("MPI_Comm_split");
	if (release == NULL)
		release = (int (*)(void **))find("MPI_Comm_free");
	if (size == NULL)
		size = (about_communicator *)find("MPI_Comm_size");
	if (split == NULL || release == NULL || size == NULL || split(communicator, opened, 0, &part) != 0)
		return false;
	bool known = size(communicator, &all) == 0 && size(part, &alike) == 0;

	release(&part);
	return known && !opened && alike < all;
}

typedef int file_open(void *communicator, const char *name, int mode, void *info, void *file);

file_open nv_MPI_File_open NV_CALL("MPI_File_open");
int nv_MPI_File_open(void *communicator, const char *name, int mode, void *info, void *file)
{
	static file_open *real;

	if (real == NULL)
		real = (file_open *)find("MPI_File_open");
	if (real == NULL)
		return FAILED;
	void *own = alone(communicator, name, mode);
	int result = real(own, name, mode, info, file);

	if (to_make(own != communicator, mode) && others_have(communicator, result == 0))
		result = real(own, name, mode | MODE_CREATE, info, file);
	return result;
}

typedef void about_fortran(const int *communicator, int *number, int *error);

/* alone_fortran is alone for a name that ends in blanks. */
static int alone_fortran(int communicator, const char *name, size_t length, int mode)
{
	static about_fortran *size, *rank;
	int ranks = 1, self = -1, error = 0;
	char copy[NV_PATH];

	while (length > 0 && name[length - 1] == ' ')
		length--;
	if (!nv_mounted || length >= sizeof copy)
		return communicator;
	memcpy(copy, name, length);
	copy[length] = '\0';
	const char *path = ours(copy);

	if (path == NULL)
		return communicator;
	if (size == NULL)
		size = (about_fortran *)find("mpi_comm_size_");
	if (rank == NULL)
		rank = (about_fortran *)find("mpi_comm_rank_");
	if (size == NULL || rank == NULL)
		return communicator;
	size(&communicator, &ranks, &error);
	rank(&communicator, &self, &error);
	tell(path, ranks, self, mode);
	return find_quietly(OPENMPI) != NULL ? 1 : MPICH_SELF;
}

/* others_have_fortran is others_have for a communicator of Fortran. */
static bool others_have_fortran(int communicator, int opened)
{
	static void (*split)(const int *, const int *, const int *, int *, int *), (*release)(int *, int *);
	static about_fortran *size;
	int key = 0, part = 0, all = 0, alike = 0, error = FAILED;

	if (split == NULL)
		split = (void (*)(const int *, const int *, const int *, int *, int *))find("mpi_comm_split_");
	if (release == NULL)
		release = (void (*)(int *, int *))find("mpi_comm_free_");
	if (size == NULL)
		size = (about_fortran *)find("mpi_comm_size_");
	if (split == NULL || release == NULL || size == NULL)
		return false;
	split(&communicator, &opened, &key, &part, &error);
	if (error != 0)
		return false;
	size(&communicator, &all, &error);
	size(&part, &alike, &error);
	release(&part, &error);
	return !opened && alike < all;
}

typedef void file_open_fortran(const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror, size_t length);

static void open_fortran(file_open_fortran *real, const int *communicator, char *name, const int *mode, const int *info, int *file, int *ierror,
			 size_t length)
{
	int own = alone_fortran(*communicator, name, length, *mode), error = FAILED;

	if (real != NULL)
		real(&own, name, mode, info, file, &error, length);
	if (real != NULL && to_make(own != *communicator, *mode) && others_have_fortran(*communicator, error == 0)) {
		int making = *mode | MODE_CREATE;

		real(&own, name, &making, info, file, &error, length);
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

#define FORTRAN_ALL(init, init_thread, finalize)                                                        \
	FORTRAN_FUNCTION(init, begin(), end, (int *ierror), &result)                                    \
	FORTRAN_FUNCTION(init_thread, begin(), end, (int *required, int *provided, int *ierror), required, provided, &result) \
	FORTRAN_FUNCTION(finalize, leaving(), left, (int *ierror), &result)

FORTRAN_ALL(mpi_init_, mpi_init_thread_, mpi_finalize_)
FORTRAN_ALL(mpi_init_f08_, mpi_init_thread_f08_, mpi_finalize_f08_)
FORTRAN_ALL(mpi_init, mpi_init_thread, mpi_finalize)
FORTRAN_ALL(mpi_init__, mpi_init_thread__, mpi_finalize__)
FORTRAN_ALL(MPI_INIT, MPI_INIT_THREAD, MPI_FINALIZE)
