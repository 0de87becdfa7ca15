/* poll and select. Descriptors that are ours are always ready to read and write, like those of regular files. The kernel is not
 * asked about them: their placeholders would be errors. */
#include "nv.h"

#define READY (POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM)

/* hide complements the numbers of descriptors that are ours, because poll ignores negative ones. It returns how many of them
 * are ready; -1: none is ours. */
static int hide(struct pollfd *fds, nfds_t n)
{
	int ready = -1;

	if (atomic_load(&nv_fds_end) == 0 || nv_near_null(fds))
		return -1;
	for (nfds_t i = 0; i < n; i++) {
		if (fds[i].fd < 0 || nv_handle_of(fds[i].fd) == 0)
			continue;
		fds[i].fd = ~fds[i].fd;
		ready = (ready < 0 ? 0 : ready) + ((fds[i].events & READY) != 0);
	}
	return ready;
}

/* unhide restores the numbers, and adds the ready ones to the result of poll. */
static int unhide(struct pollfd *fds, nfds_t n, int ready, int result)
{
	for (nfds_t i = 0; ready >= 0 && i < n; i++) {
		if (fds[i].fd >= 0 || nv_handle_of(~fds[i].fd) == 0)
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

/* The sets of select: read, write, exceptions. During the real call the descriptors that are ours are in ours. */
struct selected {
	fd_set *set[3], ours[3];
	int ready; /* how many in ours[0] and ours[1]; a file has no exceptional conditions */
};

/* remove_ours moves the descriptors that are ours from set to ours, and returns how many they are. */
static int remove_ours(int n, fd_set *set, fd_set *ours)
{
	int count = 0;

	FD_ZERO(ours);
	for (int fd = 0; set != NULL && fd < n; fd++)
		if (FD_ISSET(fd, set) && nv_handle_of(fd) != 0) {
			FD_CLR(fd, set);
			FD_SET(fd, ours);
			count++;
		}
	return count;
}

static void add_ours(int n, fd_set *set, const fd_set *ours)
{
	for (int fd = 0; set != NULL && fd < n; fd++)
		if (FD_ISSET(fd, ours))
			FD_SET(fd, set);
}

/* begin_select removes the descriptors that are ours from all sets; false: there are none. */
static bool begin_select(int n, struct selected *c)
{
	if (atomic_load(&nv_fds_end) == 0 || n < 0 || n > FD_SETSIZE)
		return false;
	c->ready = remove_ours(n, c->set[0], &c->ours[0]) + remove_ours(n, c->set[1], &c->ours[1]);
	return remove_ours(n, c->set[2], &c->ours[2]) + c->ready > 0;
}

/* end_select adds them again. After an error select leaves all three sets unchanged. */
static int end_select(int n, struct selected *c, int result)
{
	for (int i = 0; i < (result < 0 ? 3 : 2); i++)
		add_ours(n, c->set[i], &c->ours[i]);
	return result < 0 ? result : result + c->ready;
}

int nv_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timeval now = {0};
	struct selected c = {.set = {r, w, e}};

	if (!begin_select(n, &c))
		return REAL(select)(n, r, w, e, timeout);
	return end_select(n, &c, REAL(select)(n, r, w, e, c.ready > 0 ? &now : timeout));
}

int nv_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec now;
	struct selected c = {.set = {r, w, e}};

	if (!begin_select(n, &c))
		return REAL(pselect)(n, r, w, e, timeout, mask);
	return end_select(n, &c, REAL(pselect)(n, r, w, e, c.ready > 0 ? &now : timeout, mask));
}
