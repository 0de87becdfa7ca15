/*
 * MPI_Init, MPI_Init_thread and MPI_Finalize of C, Fortran and mpi_f08, for any MPI library. After the library's MPI_Init has
 * returned, the runtime opens the rank's partition. Before the library's MPI_Finalize the runtime stops using MPI. files.c has MPI-IO.
 */
#include <dlfcn.h>

#include "interpose.h"

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

/* nv_find_quietly returns a symbol of the MPI library, or NULL. */
void *nv_find_quietly(const char *name)
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

void *nv_find(const char *name)
{
	void *f = nv_find_quietly(name);

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
