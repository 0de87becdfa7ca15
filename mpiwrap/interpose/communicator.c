/* Calls of the MPI library about a communicator, whose handle is of C or of Fortran. */
#include "interpose.h"

/* The functions of C and of Fortran, once they have been looked for. */
struct function {
	const char *of_c, *of_fortran;
	void *found[2];
};

static void *lookup(struct function *f, bool fortran)
{
	if (f->found[fortran] == NULL)
		f->found[fortran] = nv_find(fortran ? f->of_fortran : f->of_c);
	return f->found[fortran];
}

/* number calls MPI_Comm_size or MPI_Comm_rank. It returns -1 if the call fails. */
static int number(struct function *f, struct nv_communicator c)
{
	void *call = lookup(f, c.fortran);
	int n = -1, error = 0;

	if (call == NULL)
		return -1;
	if (c.fortran)
		((void (*)(const int *, int *, int *))call)(&c.integer, &n, &error);
	else
		error = ((int (*)(void *, int *))call)(c.pointer, &n);
	return error == 0 ? n : -1;
}

bool nv_comm_ranks(struct nv_communicator c, int *ranks, int *self)
{
	static struct function size = { "MPI_Comm_size", "mpi_comm_size_", { NULL } }, rank = { "MPI_Comm_rank", "mpi_comm_rank_", { NULL } };

	*ranks = number(&size, c);
	*self = *ranks > 0 ? number(&rank, c) : -1;
	return *self >= 0;
}

void nv_comm_barrier(struct nv_communicator c)
{
	static struct function barrier = { "MPI_Barrier", "mpi_barrier_", { NULL } };
	void *call = lookup(&barrier, c.fortran);
	int error;

	if (call == NULL)
		return;
	if (c.fortran)
		((void (*)(const int *, int *))call)(&c.integer, &error);
	else
		((int (*)(void *))call)(c.pointer);
}

struct nv_communicator nv_comm_dup(struct nv_communicator c)
{
	static struct function dup = { "MPI_Comm_dup", "mpi_comm_dup_", { NULL } };
	struct nv_communicator copy = { .fortran = c.fortran };
	void *call = lookup(&dup, c.fortran);
	int error;

	if (call != NULL && c.fortran)
		((void (*)(const int *, int *, int *))call)(&c.integer, &copy.integer, &error);
	else if (call != NULL)
		((int (*)(void *, void **))call)(c.pointer, &copy.pointer);
	return copy;
}

void nv_comm_free(struct nv_communicator c)
{
	static struct function release = { "MPI_Comm_free", "mpi_comm_free_", { NULL } };
	void *call = lookup(&release, c.fortran);
	int error;

	if (call != NULL && c.fortran)
		((void (*)(int *, int *))call)(&c.integer, &error);
	else if (call != NULL)
		((int (*)(void **))call)(&c.pointer);
}
