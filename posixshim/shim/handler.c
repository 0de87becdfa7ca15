/* Calls that signal handlers make.
 *
 * Many programs write their checkpoint in the handler of the signal that the batch
 * system sends before the job's time is over. A handler runs on the alternate stack
 * and must not call Go there (nv_in_handler). So such a call goes the way of those
 * of other processes, which has no Go in it (far.c): to this process itself, where a
 * thread of the runtime makes it. To the runtime it is a call of this process's own:
 * handles and locks are the same.
 *
 * It never interrupts a call on a file of ours, which may hold what the handler's
 * would wait for (actions.c); one that was installed unseen is refused (EDEADLK). */
#include "nv.h"

/* The program has handlers. */
static _Atomic bool expected;

void nv_expect_handlers(void)
{
	atomic_store(&expected, true);
}

/* nv_serve_handlers makes the runtime ready for their calls, once it is loaded and
 * there are handlers. Without (no descriptor is left, say) they are refused. */
void nv_serve_handlers(void)
{
	int saved = errno;

	if (!atomic_load(&expected) || nv_named_self())
		return;
	int64_t number = rt_serve();

	if (number > 0) {
		nv_name_self((uint64_t)number);
		nv_share_as((uint64_t)number);
	}
	errno = saved;
}

/* nv_enter_handler is called when nv_enter has failed. */
bool nv_enter_handler(struct nv_visit *visit, int *server)
{
	if (nv_state == NV_INSIDE || !nv_in_handler() || !nv_loaded() || !nv_named_self())
		return false;
	*server = NV_SELF;
	return nv_enter_far(visit);
}
