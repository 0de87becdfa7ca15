/* poll and select: like regular files, ours are always ready. */
#include "nv.h"

/* Descriptors of ours are hidden from the kernel while it polls the others by
 * complementing them, and put back afterwards. */

static int hide(struct pollfd *fds, nfds_t n)
{
	int ready = 0;

	for (nfds_t i = 0; i < n; i++) {
		if (fds[i].fd < 0 || nv_ours(fds[i].fd) == 0)
			continue;
		fds[i].fd = ~fds[i].fd;
		if (fds[i].events & (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM))
			ready++;
	}
	return ready;
}

static void unhide(struct pollfd *fds, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++) {
		if (fds[i].fd >= 0 || nv_ours(~fds[i].fd) == 0)
			continue;
		fds[i].fd = ~fds[i].fd;
		fds[i].revents = fds[i].events & (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM);
	}
}

static bool any(const struct pollfd *fds, nfds_t n)
{
	if (fds == NULL || atomic_load(&nv_ours_end) == 0 || !nv_readable(fds, n * sizeof *fds))
		return false;
	for (nfds_t i = 0; i < n; i++)
		if (fds[i].fd >= 0 && nv_ours(fds[i].fd) != 0)
			return true;
	return false;
}

int nv_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	if (!any(fds, n))
		return REAL(poll)(fds, n, timeout);
	int ready = hide(fds, n);
	int r = REAL(poll)(fds, n, ready > 0 ? 0 : timeout);

	unhide(fds, n);
	return r < 0 ? r : r + ready;
}

int nv_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec now;

	if (!any(fds, n))
		return REAL(ppoll)(fds, n, timeout, mask);
	int ready = hide(fds, n);
	int r = REAL(ppoll)(fds, n, ready > 0 ? &now : timeout, mask);

	unhide(fds, n);
	return r < 0 ? r : r + ready;
}

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

/* What select was asked about ours. */
struct chosen {
	fd_set r, w, e;
	int ready; /* to read or write: nothing is ever exceptional */
	int taken;
};

/* there says whether a set, if it is given, can be changed. */
static bool there(int n, fd_set *set)
{
	return set == NULL || nv_writable(set, ((size_t)n + NFDBITS - 1) / NFDBITS * sizeof(fd_mask));
}

static bool choose(int n, fd_set *r, fd_set *w, fd_set *e, struct chosen *c)
{
	if (atomic_load(&nv_ours_end) == 0 || n < 0 || n > FD_SETSIZE || !there(n, r) || !there(n, w) || !there(n, e))
		return false;
	c->ready = take(n, r, &c->r);
	c->ready += take(n, w, &c->w);
	c->taken = c->ready + take(n, e, &c->e);
	return c->taken > 0;
}

static int finish(int n, fd_set *r, fd_set *w, fd_set *e, struct chosen *c, int result)
{
	if (result < 0)
		give(n, e, &c->e); /* after an error the sets are as they were */
	give(n, r, &c->r);
	give(n, w, &c->w);
	return result < 0 ? result : result + c->ready;
}

int nv_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timeval now = {0};
	struct chosen c;

	if (!choose(n, r, w, e, &c))
		return REAL(select)(n, r, w, e, timeout);
	return finish(n, r, w, e, &c, REAL(select)(n, r, w, e, c.ready > 0 ? &now : timeout));
}

int nv_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec now;
	struct chosen c;

	if (!choose(n, r, w, e, &c))
		return REAL(pselect)(n, r, w, e, timeout, mask);
	return finish(n, r, w, e, &c, REAL(pselect)(n, r, w, e, c.ready > 0 ? &now : timeout, mask));
}
