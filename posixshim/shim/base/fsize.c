/* RLIMIT_FSIZE, by which a process, such as a batch system's, keeps its files small.
 *
 * Where a write begins only the runtime knows, which also cuts what crosses the
 * limit, with the file locked. But the limit is the calling process's, whoever
 * has the file, and so is the signal. So the limit goes along with each call that
 * may make a file larger (the type `limit` of calls.txt): it is one load, since it is
 * asked for only after the calls that set it, which are interposed, and after each
 * opening of a file, since another process may set it too. */
#include <signal.h>

#include "nv.h"

_Atomic int64_t nv_fsize = -1;

/* nv_ask_file_limit keeps what it finds. A child of vfork, which may have a limit of its own,
 * leaves its parent's alone. */
int64_t nv_ask_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur > INT64_MAX)
		limit.rlim_cur = INT64_MAX; /* none */
	if (nv_own_memory())
		atomic_store(&nv_fsize, (int64_t)limit.rlim_cur);
	return (int64_t)limit.rlim_cur;
}

void nv_forget_file_limit(void)
{
	atomic_store_explicit(&nv_fsize, -1, memory_order_relaxed);
}

/* nv_relimited takes note that a limit may have been set. */
long nv_relimited(long result)
{
	nv_forget_file_limit();
	return result;
}

/* nv_file_too_large is what becomes of a call that would make a file too large. */
int nv_file_too_large(void)
{
	raise(SIGXFSZ);
	return nv_error(EFBIG);
}
