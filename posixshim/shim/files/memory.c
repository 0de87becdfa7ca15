/* Mappings of files. What a mapping of ours shows is memory of the kernel that
 * the runtime has made and filled (posixshim/mapping.go), or the file as the kernel has it
 * (posixshim/view.go); here is which addresses show what, so that what is changed there finds its
 * file, and the file stays as long as it is mapped. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nv.h"

/* A mapping of ours that the runtime counts, or what is left of it: all but those of a private copy. */
struct mapped {
	char *start;
	size_t length;
	off_t off;
	nv_handle h;
	struct mapped *next;
};

/* Under lock; count, how many there are, is read anywhere. */
static struct mapped *list;
static _Atomic unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void)
{
	nv_hold();
	pthread_mutex_lock(&lock);
}

static bool try_hold(void)
{
	nv_hold();
	if (pthread_mutex_trylock(&lock) == 0)
		return true;
	nv_let_go();
	return false;
}

static void let_go(void)
{
	int saved = errno;

	pthread_mutex_unlock(&lock);
	nv_let_go();
	errno = saved;
}

/* nv_forget_mappings is called in a forked child: the memory is its parent's,
 * too, and the parent writes it to the file. */
void nv_forget_mappings(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	lock = fresh;
	list = NULL;
	atomic_store(&count, 0);
}

static bool enlist(char *start, size_t length, off_t off, nv_handle h)
{
	struct mapped *m = malloc(sizeof *m);

	if (m == NULL)
		return false;
	*m = (struct mapped){start, length, off, h, list};
	list = m;
	atomic_fetch_add(&count, 1);
	return true;
}

static size_t whole_pages(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (n + page - 1) & ~(page - 1);
}

/* part is where [addr, addr+n) and a mapping meet; false if they do not. */
static bool part(const struct mapped *m, const char *addr, size_t n, size_t *from, size_t *to)
{
	if (addr + n <= m->start || addr >= m->start + m->length)
		return false;
	*from = addr > m->start ? (size_t)(addr - m->start) : 0;
	*to = addr + n < m->start + m->length ? (size_t)(addr + n - m->start) : m->length;
	return true;
}

/* save writes to the files what was changed in [addr, addr+n). */
static int save(const char *addr, size_t n)
{
	size_t from, to;

	for (struct mapped *m = list; m != NULL; m = m->next)
		if (part(m, addr, n, &from, &to) && rt_msync(m->h, m->off + (off_t)from, (off_t)(to - from)) != 0)
			return -1;
	return 0;
}

/* again counts one more mapping of a file. */
static bool again(const struct mapped *m)
{
	if (rt_map(m->h, NV_MAP_SHARED, m->off, 1) < 0)
		return false;
	if (nv_server(m->h) != 0)
		REAL(close)(nv_remote_descriptor);
	return true;
}

/* forget takes [addr, addr+n) from the list. */
static void forget(const char *addr, size_t n)
{
	size_t from, to;

	for (struct mapped **p = &list; *p != NULL;) {
		struct mapped *m = *p;

		if (!part(m, addr, n, &from, &to)) {
			p = &m->next;
			continue;
		}
		/* What is behind becomes a mapping of its own. */
		if (from > 0 && to < m->length && again(m) &&
		    !enlist(m->start + to, m->length - to, m->off + (off_t)to, m->h))
			rt_unmap(m->h);
		if (from > 0) {
			m->length = from;
		} else if (to < m->length) {
			m->start += to;
			m->off += (off_t)to;
			m->length -= to;
		} else {
			*p = m->next;
			if (rt_unmap(m->h) != 0)
				nv_complain("closing a file under %s that was mapped: %m", nv_mount);
			free(m);
			atomic_fetch_sub(&count, 1);
			continue;
		}
		p = &m->next;
	}
}

static int give_up(const char *addr, size_t n)
{
	if (save(addr, n) != 0) {
		nv_complain("memory of a file under %s was changed and is being unmapped, but cannot be written: %m", nv_mount);
		return -1;
	}
	forget(addr, n);
	return 0;
}

void *nv_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
	bool shared = (flags & MAP_TYPE) != MAP_PRIVATE;
	int saved = errno;
	nv_handle h = nv_ours(fd);

	if (__builtin_expect(h == 0, 1) || (flags & MAP_ANONYMOUS))
		return REAL(mmap)(addr, n, prot, flags, fd, off);
	if ((flags & MAP_TYPE) == MAP_SHARED_VALIDATE && (flags & MAP_SYNC)) {
		errno = EOPNOTSUPP;
		return MAP_FAILED;
	}
	int how = (shared ? NV_MAP_SHARED : 0) | (prot & PROT_WRITE ? NV_MAP_WRITE : 0);
	bool sent = nv_server(h) != 0; /* another process has made it, and sent it */

	if (sent) /* a handler's call may bring another descriptor */
		nv_hold();
	int64_t result = rt_map(h, how, off, n > SSIZE_MAX ? -1 : (off_t)n);
	int memory = sent ? nv_remote_descriptor : (int)(result & INT32_MAX);

	if (sent)
		nv_let_go();
	if (result < 0)
		return MAP_FAILED;
	bool kept = shared || (sent ? nv_local(result) != 0 : (result & NV_MAP_KEPT) != 0);

	hold();
	char *start = MAP_FAILED;

	if (!(flags & MAP_FIXED) || atomic_load(&count) == 0 || give_up(addr, whole_pages(n)) == 0)
		start = REAL(mmap)(addr, n, prot, flags, memory, off);
	if (!kept || sent)
		nv_close_quietly(memory);
	if (!kept) {
		/* no other mapping has it */
	} else if (start == MAP_FAILED) {
		int why = errno;

		rt_unmap(h);
		errno = why;
	} else if (!enlist(start, whole_pages(n), off, h)) {
		REAL(munmap)(start, n);
		rt_unmap(h);
		errno = ENOMEM;
		start = MAP_FAILED;
	}
	let_go();
	if (start != MAP_FAILED)
		errno = saved;
	return start;
}

/* nv_release_mappings is called at the end of a process that another one serves. */
void nv_release_mappings(void)
{
	if (atomic_load(&count) == 0 || nv_state == NV_INSIDE || !try_hold())
		return; /* the other one learns of the end, and writes what was changed */
	while (list != NULL && give_up(list->start, list->length) == 0)
		;
	let_go();
}

int nv_munmap(void *addr, size_t n)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0 || nv_state == NV_INSIDE)
		return REAL(munmap)(addr, n);
	hold();
	int r = give_up(addr, whole_pages(n));

	if (r == 0)
		r = REAL(munmap)(addr, n);
	let_go();
	return r;
}

int nv_msync(void *addr, size_t n, int flags)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0 || nv_state == NV_INSIDE)
		return REAL(msync)(addr, n, flags);
	int r = REAL(msync)(addr, n, flags); /* it knows what is not mapped, or not allowed */

	if (r != 0)
		return r;
	hold();
	r = save(addr, whole_pages(n));
	let_go();
	return r;
}

/* move makes what is listed of [addr, addr+n) a mapping of to bytes at now. */
static void move(const char *addr, char *now, size_t to)
{
	for (struct mapped *m = list; m != NULL; m = m->next)
		if (m->start == addr) {
			m->start = now;
			m->length = to;
		}
}

void *nv_mremap(void *addr, size_t n, size_t to, int flags, void *at)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0 || nv_state == NV_INSIDE)
		return REAL(mremap)(addr, n, to, flags, at);
	hold();
	char *now = MAP_FAILED;
	size_t was = whole_pages(n), is = whole_pages(to);
	bool fixed = (flags & MREMAP_FIXED) != 0;

	if ((!fixed || give_up(at, is) == 0) && (is >= was || give_up((char *)addr + is, was - is) == 0))
		now = REAL(mremap)(addr, n, to, flags, at);
	if (now != MAP_FAILED)
		move(addr, now, is);
	let_go();
	return now;
}
