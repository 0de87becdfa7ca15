/* RLIMIT_FSIZE, which batch systems set to limit the size of files.
 *
 * The runtime applies the limit, because it alone knows the offset of a write. It may be the runtime of a server, but the
 * limit and the signal are those of the calling process. So each call that may enlarge a file has the limit as a parameter
 * (the type `limit` of calls.txt). The limit is kept in nv_fsize, so that such a call costs one load. nv_fsize is
 * invalidated by the interposed calls that set limits, and whenever a file is opened, since another process may have
 * set the limit (prlimit). */
#include <signal.h>

#include "nv.h"

_Atomic int64_t nv_fsize = -1;

/* nv_query_file_limit asks the kernel for the limit and stores it. A child of vfork may have another limit than its parent,
 * whose memory it shares, so it does not store it. */
int64_t nv_query_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur > INT64_MAX)
		limit.rlim_cur = INT64_MAX; /* none */
	if (nv_owns_memory())
		atomic_store(&nv_fsize, (int64_t)limit.rlim_cur);
	return (int64_t)limit.rlim_cur;
}

void nv_invalidate_file_limit(void)
{
	atomic_store_explicit(&nv_fsize, -1, memory_order_relaxed);
}

/* nv_file_limit_set is given the result of a call that may have set the limit, and returns it. */
long nv_file_limit_set(long result)
{
	nv_invalidate_file_limit();
	return result;
}

/* nv_file_too_large ends a call that would exceed the limit: as the kernel does, with SIGXFSZ and EFBIG. */
int nv_file_too_large(void)
{
	raise(SIGXFSZ);
	return nv_error(EFBIG);
}
