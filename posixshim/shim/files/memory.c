/* Mappings of files.
 *
 * A mapping of ours shows a memfd, which the runtime has made and filled (posixshim/mapping.go), or the file in the view
 * (posixshim/view.go). This file keeps a list of the address ranges. By that list msync and munmap find the file to write changed
 * memory to, and the runtime keeps a file open as long as it is mapped.
 *
 * The lock guards the list. A thread that has it blocks signals. The runtime is called with the lock held, and never takes it. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nv.h"

/* An address range of a mapping. Private mappings of a copy are not in the list: nothing of them is written. */
struct mapped {
	char *start;
	size_t length;
	off_t off;
	nv_handle h;
	struct mapped *next;
};

static struct mapped *list;
static _Atomic unsigned count; /* entries of list; read without the lock by programs that have no mapping */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_list(void)
{
	nv_begin_critical();
	pthread_mutex_lock(&lock);
}

static bool try_lock_list(void)
{
	nv_begin_critical();
	if (pthread_mutex_trylock(&lock) == 0)
		return true;
	nv_end_critical();
	return false;
}

static void unlock_list(void)
{
	int saved = errno;

	pthread_mutex_unlock(&lock);
	nv_end_critical();
	errno = saved;
}

/* nv_forget_mappings is called in a forked child. The parent shares the memory, and writes it to the file. */
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

/* overlap stores the part of a mapping that is in [addr, addr+n), as offsets in the mapping; false: they do not overlap. */
static bool overlap(const struct mapped *m, const char *addr, size_t n, size_t *from, size_t *to)
{
	if (addr + n <= m->start || addr >= m->start + m->length)
		return false;
	*from = addr > m->start ? (size_t)(addr - m->start) : 0;
	*to = addr + n < m->start + m->length ? (size_t)(addr + n - m->start) : m->length;
	return true;
}

/* write_changes writes to the files what was changed in [addr, addr+n). */
static int write_changes(const char *addr, size_t n)
{
	size_t from, to;

	for (struct mapped *m = list; m != NULL; m = m->next)
		if (overlap(m, addr, n, &from, &to) && rt_msync(m->h, m->off + (off_t)from, (off_t)(to - from)) != 0)
			return -1;
	return 0;
}

/* map_again makes the runtime count one more mapping of a file. */
static bool map_again(const struct mapped *m)
{
	if (rt_map(m->h, NV_MAP_SHARED, m->off, 1) < 0)
		return false;
	if (nv_server(m->h) != 0)
		REAL(close)(nv_remote_descriptor);
	return true;
}

/* unlist removes [addr, addr+n) from the list. */
static void unlist(const char *addr, size_t n)
{
	size_t from, to;

	for (struct mapped **p = &list; *p != NULL;) {
		struct mapped *m = *p;

		if (!overlap(m, addr, n, &from, &to)) {
			p = &m->next;
			continue;
		}
		/* The part after the range becomes an entry of its own. */
		if (from > 0 && to < m->length && map_again(m) &&
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

/* write_and_unlist is called before [addr, addr+n) is unmapped. */
static int write_and_unlist(const char *addr, size_t n)
{
	if (write_changes(addr, n) != 0) {
		nv_complain("memory of a file under %s was changed and is being unmapped, but cannot be written: %m", nv_mount);
		return -1;
	}
	unlist(addr, n);
	return 0;
}

void *nv_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t off)
{
	bool shared = (flags & MAP_TYPE) != MAP_PRIVATE;
	int saved = errno;
	nv_handle h = nv_handle_of(fd);

	if (__builtin_expect(h == 0, 1) || (flags & MAP_ANONYMOUS))
		return REAL(mmap)(addr, n, prot, flags, fd, off);
	if ((flags & MAP_TYPE) == MAP_SHARED_VALIDATE && (flags & MAP_SYNC)) {
		errno = EOPNOTSUPP;
		return MAP_FAILED;
	}
	int how = (shared ? NV_MAP_SHARED : 0) | (prot & PROT_WRITE ? NV_MAP_WRITE : 0);
	bool sent = nv_server(h) != 0; /* a server makes the memory, and sends its descriptor */

	if (sent) /* a call of a signal handler would overwrite nv_remote_descriptor */
		nv_begin_critical();
	int64_t result = rt_map(h, how, off, n > SSIZE_MAX ? -1 : (off_t)n);
	int memory = sent ? nv_remote_descriptor : (int)(result & INT32_MAX);

	if (sent)
		nv_end_critical();
	if (result < 0)
		return MAP_FAILED;
	bool kept = shared || (sent ? nv_local(result) != 0 : (result & NV_MAP_KEPT) != 0);

	lock_list();
	char *start = MAP_FAILED;

	if (!(flags & MAP_FIXED) || atomic_load(&count) == 0 || write_and_unlist(addr, whole_pages(n)) == 0)
		start = REAL(mmap)(addr, n, prot, flags, memory, off);
	if (!kept || sent)
		nv_close_quietly(memory);
	if (!kept) {
		/* a private copy: there is nothing to unmap in the runtime */
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
	unlock_list();
	if (start != MAP_FAILED)
		errno = saved;
	return start;
}

/* nv_release_mappings is called at the end of a process that has a server and no runtime. If the lock is taken it does nothing:
 * the server writes the changes when the connection is closed. */
void nv_release_mappings(void)
{
	if (atomic_load(&count) == 0 || nv_state == NV_INSIDE || !try_lock_list())
		return;
	while (list != NULL && write_and_unlist(list->start, list->length) == 0)
		;
	unlock_list();
}

int nv_munmap(void *addr, size_t n)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0 || nv_state == NV_INSIDE)
		return REAL(munmap)(addr, n);
	lock_list();
	int r = write_and_unlist(addr, whole_pages(n));

	if (r == 0)
		r = REAL(munmap)(addr, n);
	unlock_list();
	return r;
}

int nv_msync(void *addr, size_t n, int flags)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0 || nv_state == NV_INSIDE)
		return REAL(msync)(addr, n, flags);
	int r = REAL(msync)(addr, n, flags); /* checks the range and the flags */

	if (r != 0)
		return r;
	lock_list();
	r = write_changes(addr, whole_pages(n));
	unlock_list();
	return r;
}

/* move changes the entry that starts at addr to the range of to bytes at now. */
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
	lock_list();
	char *now = MAP_FAILED;
	size_t was = whole_pages(n), is = whole_pages(to);
	bool fixed = (flags & MREMAP_FIXED) != 0;

	if ((!fixed || write_and_unlist(at, is) == 0) && (is >= was || write_and_unlist((char *)addr + is, was - is) == 0))
		now = REAL(mremap)(addr, n, to, flags, at);
	if (now != MAP_FAILED)
		move(addr, now, is);
	unlock_list();
	return now;
}
