/* poll and select: like regular files, ours are always ready. */
#include "nv.h"

#define READY (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM)

/* hide hides descriptors of ours from the kernel while it polls the others, by complementing them. It
 * returns how many of them are ready; -1: none is ours. */
static int hide(struct pollfd *fds, nfds_t n)
{
	int ready = -1;

	if (atomic_load(&nv_ours_end) == 0 || nv_nowhere(fds))
		return -1;
	for (nfds_t i = 0; i < n; i++) {
		if (fds[i].fd < 0 || nv_ours(fds[i].fd) == 0)
			continue;
		fds[i].fd = ~fds[i].fd;
		ready = (ready < 0 ? 0 : ready) + ((fds[i].events & READY) != 0);
	}
	return ready;
}

/* unhide puts them back, and counts them in what poll has returned. */
static int unhide(struct pollfd *fds, nfds_t n, int ready, int result)
{
	for (nfds_t i = 0; ready >= 0 && i < n; i++) {
		if (fds[i].fd >= 0 || nv_ours(~fds[i].fd) == 0)
			continue;
		fds[i].fd = ~fds[i].fd;
		fds[i].revents = fds[i].events & READY;
	}
	return result < 0 || ready < 0 ? result : result + ready;
}

int nv_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	int ready = hide(fds, n);

	return unhide(fds, n, ready, REAL(poll)(fds, n, ready > 0 ? 0 : timeout));
}

int nv_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec now;
	int ready = hide(fds, n);

	return unhide(fds, n, ready, REAL(ppoll)(fds, n, ready > 0 ? &now : timeout, mask));
}

/* What select is asked about: to read, to write, exceptions. Ours are taken out of the sets meanwhile. */
struct chosen {
	fd_set *set[3], ours[3];
	int ready; /* nothing is ever exceptional */
};

/* take moves the descriptors of ours from set to ours and counts them. */
static int take(int n, fd_set *set, fd_set *ours)
{
	int count = 0;

	FD_ZERO(ours);
	for (int fd = 0; set != NULL && fd < n; fd++)
		if (FD_ISSET(fd, set) && nv_ours(fd) != 0) {
			FD_CLR(fd, set);
			FD_SET(fd, ours);
			count++;
		}
	return count;
}

static void give(int n, fd_set *set, const fd_set *ours)
{
	for (int fd = 0; set != NULL && fd < n; fd++)
		if (FD_ISSET(fd, ours))
			FD_SET(fd, set);
}

static bool choose(int n, struct chosen *c)
{
	if (atomic_load(&nv_ours_end) == 0 || n < 0 || n > FD_SETSIZE)
		return false;
	c->ready = take(n, c->set[0], &c->ours[0]) + take(n, c->set[1], &c->ours[1]);
	return take(n, c->set[2], &c->ours[2]) + c->ready > 0;
}

static int finish(int n, struct chosen *c, int result)
{
	for (int i = 0; i < (result < 0 ? 3 : 2); i++) /* after an error the sets are as they were */
		give(n, c->set[i], &c->ours[i]);
	return result < 0 ? result : result + c->ready;
}

int nv_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timeval now = {0};
	struct chosen c = {.set = {r, w, e}};

	if (!choose(n, &c))
		return REAL(select)(n, r, w, e, timeout);
	return finish(n, &c, REAL(select)(n, r, w, e, c.ready > 0 ? &now : timeout));
}

int nv_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec now;
	struct chosen c = {.set = {r, w, e}};

	if (!choose(n, &c))
		return REAL(pselect)(n, r, w, e, timeout, mask);
	return finish(n, &c, REAL(pselect)(n, r, w, e, c.ready > 0 ? &now : timeout, mask));
}
