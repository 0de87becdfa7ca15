/*
 * MPI_Init, MPI_Init_thread and MPI_Finalize of C, Fortran and mpi_f08, of any
 * MPI library: after the real MPI_Init has returned the runtime opens the
 * rank's partition, before the real MPI_Finalize it lets go of MPI.
 *
 * No MPI header is used: these functions take pointers and integers in every
 * MPI. One binding may call another (MPICH's Fortran calls its C), so only the
 * outermost call counts.
 */
#include <dlfcn.h>

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

static void *find(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	for (size_t i = 0; f == NULL && i < sizeof libraries / sizeof *libraries; i++) {
		void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);

		if (library != NULL) {
			f = dlsym(library, name);
			dlclose(library);
		}
	}
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

#define FORTRAN_ALL(init, init_thread, finalize)                                                        \
	FORTRAN_FUNCTION(init, begin(), end, (int *ierror), &result)                                    \
	FORTRAN_FUNCTION(init_thread, begin(), end, (int *required, int *provided, int *ierror), required, provided, &result) \
	FORTRAN_FUNCTION(finalize, leaving(), left, (int *ierror), &result)

FORTRAN_ALL(mpi_init_, mpi_init_thread_, mpi_finalize_)
FORTRAN_ALL(mpi_init_f08_, mpi_init_thread_f08_, mpi_finalize_f08_)
FORTRAN_ALL(mpi_init, mpi_init_thread, mpi_finalize)
FORTRAN_ALL(mpi_init__, mpi_init_thread__, mpi_finalize__)
FORTRAN_ALL(MPI_INIT, MPI_INIT_THREAD, MPI_FINALIZE)
