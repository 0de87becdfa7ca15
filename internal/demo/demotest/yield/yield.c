/*
 * A library to preload into the programs of tests. A rank that waits calls
 * sched_yield in a loop; here it sleeps, and the tests beside it have the core.
 */
#include <sched.h>
#include <time.h>

int sched_yield(void)
{
	static const struct timespec nap = {.tv_nsec = 100000};

	return nanosleep(&nap, NULL);
}
