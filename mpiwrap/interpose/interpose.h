/*
 * What the interposed functions of MPI have in common. No MPI header is included: the arguments of these functions are pointers and
 * integers in every MPI library. A function of one language may call that of another one (MPICH's Fortran calls its C), so only the
 * outermost call has an effect.
 */
#ifndef NV_INTERPOSE_H
#define NV_INTERPOSE_H

#include "../../posixshim/shim/nv.h"

/* nv_find_quietly returns a symbol of the MPI library, or NULL. nv_find also prints that there is none. */
void *nv_find_quietly(const char *name);
void *nv_find(const char *name);

/* A handle of a communicator. C's is a pointer in Open MPI, an integer in MPICH; Fortran's is an integer. */
struct nv_communicator {
	union {
		void *pointer;
		int integer;
	};
	bool fortran;
};

/* nv_comm_ranks stores the number of ranks and the rank of the caller. It returns whether the library knows the communicator. */
bool nv_comm_ranks(struct nv_communicator c, int *ranks, int *self);
void nv_comm_barrier(struct nv_communicator c);
struct nv_communicator nv_comm_dup(struct nv_communicator c);
void nv_comm_free(struct nv_communicator c);

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
			real = (int(*) parameters)nv_find(#symbol);         \
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
			real = (void(*) parameters)nv_find(#symbol);        \
		before;                                                     \
		if (real != NULL)                                           \
			real(__VA_ARGS__);                                  \
		if (ierror != NULL)                                         \
			*ierror = result;                                   \
		after(result == 0);                                         \
	}

#endif
