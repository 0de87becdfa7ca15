/* The working directory.
 *
 * While it is below the mount, the kernel's is a directory that has been
 * removed: a program without this library gets ENOENT for every relative path
 * and cannot put a file anywhere else by mistake. The path of that directory
 * says where we are,
 *
 *     /tmp/nvmecr.cwd.NAME.XXXXXX/MOUNT/PATH (deleted)
 *
 * so a program that is executed there, with this library, finds out by
 * reading /proc/self/cwd. NAME is that of the store.
 *
 * Where the kernel has a view of the mount (view.c), its working directory is the same one there. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define MARK "/nvmecr.cwd."
#define DELETED " (deleted)"

/* The working directory, if it is ours: a handle, or CWD_FOUND until the
 * directory that the process was started in has been opened. */
#define CWD_FOUND ((nv_handle)-1)
NV_EARLY static _Atomic nv_handle cwd;

/* The kernel's is the same one in the view. */
NV_EARLY static _Atomic bool in_view;

/* What stands for it if another process has it open for us; -1: none. */
static _Atomic int stand_in = -1;

/* The path that nv_find_cwd has found. */
static char found[NV_PATH];

static const char *store_name(void)
{
	const char *name = nv_given("NVMECR_NAME");

	return name != NULL && *name != '\0' ? name : "default";
}

/* take is called when rt_open has returned h for at. */
static int take(nv_handle h, const struct nv_path_at *at)
{
	return nv_server(h) != 0 ? nv_own_descriptor(at->descriptor, 1) : -1;
}

/* give gives back a directory that was opened for here. */
static void give(nv_handle h, int fd)
{
	if (fd >= 0) {
		nv_own_descriptor(fd, 0);
		REAL(close)(fd);
	}
	if (h > 0)
		rt_release(h);
}

/* find_removed finds the path in that of the directory that has been removed. */
static __attribute__((noinline)) void find_removed(void)
{
	char link[NV_PATH];
	ssize_t n = REAL(readlink)("/proc/self/cwd", link, sizeof link - 1);

	if (n < (ssize_t)strlen(DELETED))
		return;
	link[n] = '\0';
	char *end = link + n - strlen(DELETED);
	char *p = strstr(link, MARK);
	const char *name = store_name();
	size_t length = strlen(name);

	if (p == NULL || strcmp(end, DELETED) != 0)
		return;
	*end = '\0';
	p += strlen(MARK);
	if (strncmp(p, name, length) != 0 || p[length] != '.')
		return;
	p = strchr(p + length, '/');
	if (p == NULL)
		return;
	strcpy(found, p);
	atomic_store(&cwd, CWD_FOUND);
}

/* find_in_view finds it in the view. */
static __attribute__((noinline)) void find_in_view(void)
{
	char path[NV_PATH];
	bool own;
	const char *below = nv_kernel(SYS_getcwd, path, sizeof path) > 0 ? nv_below_view(path, &own) : NULL;

	if (below == NULL || snprintf(found, sizeof found, "%s/%s", nv_mount, below) >= (int)sizeof found)
		return;
	atomic_store(&in_view, own);
	atomic_store(&cwd, CWD_FOUND);
}

/* nv_find_cwd is called before main, and in a forked child. What has a path is
 * ERANGE; most programs do not need memory for more. */
NV_EARLY_CODE void nv_find_cwd(void)
{
	char none;
	int saved = errno;

	atomic_store(&in_view, false);
	if (nv_kernel(SYS_getcwd, &none, 0) == -ENOENT)
		find_removed();
	else if (nv_view != NULL)
		find_in_view();
	errno = saved;
}

/* nv_working_in_view says that the kernel finds by a relative path what is ours. */
bool nv_working_in_view(void)
{
	return atomic_load(&in_view);
}

/* nv_working returns the handle of the working directory, 0 if it is not
 * ours, and one that is not valid if it cannot be opened. */
NV_EARLY_CODE nv_handle nv_working(void)
{
	nv_handle h = atomic_load_explicit(&cwd, memory_order_acquire);

	if (__builtin_expect(h != CWD_FOUND, 1))
		return h;
	struct nv_path_at at;
	int saved = errno;

	h = nv_route(AT_FDCWD, found, &at) ? rt_open(&at, O_PATH | O_DIRECTORY, 0) : -1;
	errno = saved;
	if (h < 0)
		return CWD_FOUND;
	nv_handle expected = CWD_FOUND;
	int fd = take(h, &at);

	if (!atomic_compare_exchange_strong(&cwd, &expected, h)) {
		give(h, fd); /* another thread was faster */
		return expected;
	}
	atomic_store(&stand_in, fd);
	return h;
}

/* nv_working_now is the same without opening anything. */
nv_handle nv_working_now(void)
{
	return atomic_load(&cwd);
}

static void set_cwd(nv_handle h, int fd)
{
	nv_handle before = atomic_exchange(&cwd, h);

	give(before, atomic_exchange(&stand_in, fd));
}

/* nv_drop_cwd is called in a forked child, which has not got the stand-in. */
void nv_drop_cwd(void)
{
	atomic_store(&stand_in, -1);
	nv_find_cwd();
}

/* nv_working_redirected is called when another process is asked from now on: the
 * directory is opened there when it is needed. */
void nv_working_redirected(void)
{
	nv_handle before = atomic_load(&cwd);

	if (before <= 0)
		return;
	nv_find_cwd();
	give(before, atomic_exchange(&stand_in, -1));
}

/* leave is told the result of a real chdir or fchdir. */
static int leave(int result)
{
	if (result == 0) {
		atomic_store(&in_view, false);
		set_cwd(0, -1);
	}
	return result;
}

static int open_directory(const char *path)
{
	return REAL(open)(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* make_chain makes each directory of path that is named behind start. */
static bool make_chain(char *path, size_t start)
{
	bool made = true;

	for (char *end = path + start; made && *end != '\0';) {
		end += 1 + strcspn(end + 1, "/");
		char c = *end;

		*end = '\0';
		made = REAL(mkdir)(path, 0700) == 0;
		*end = c;
	}
	return made;
}

/* remove_chain removes them again, and that which is named by what is before start. */
static void remove_chain(char *path, size_t start)
{
	for (size_t n = strlen(path); n >= start; n = (size_t)(strrchr(path, '/') - path)) {
		path[n] = '\0';
		REAL(rmdir)(path);
	}
}

/* sunk opens a directory where nothing is, which says where h is. */
static int sunk(nv_handle h)
{
	char where[NV_PATH], path[NV_PATH];
	const char *base = nv_given("XDG_RUNTIME_DIR");

	if (base == NULL || *base != '/' || REAL(access)(base, W_OK) != 0)
		base = "/tmp";
	int64_t n = rt_fpath(h, where, sizeof where - 1);

	if (n < 0)
		return -1;
	where[n] = '\0';
	int root = snprintf(path, sizeof path, "%s" MARK "%s.XXXXXX", base, store_name());

	if (root < 0 || (size_t)root + (size_t)n + 1 >= sizeof path)
		return nv_error(ENAMETOOLONG);
	if (REAL(mkdtemp)(path) == NULL)
		return -1;
	memcpy(path + root, where, (size_t)n + 1);
	int fd = make_chain(path, (size_t)root) ? open_directory(path) : -1, saved = errno;

	remove_chain(path, (size_t)root);
	errno = saved;
	return fd;
}

/* enter makes the open directory the working one, which may be searched and need not be
 * read; its handle is taken over. */
static int enter(nv_handle h, int fd)
{
	struct nv_path_at at = {.dir = h, .path = "."};
	bool may = rt_access(&at, X_OK, AT_EACCESS) == 0;
	int saved = errno, viewed = may ? nv_open_in_view(h) : -1, kernels = may && viewed < 0 ? sunk(h) : viewed;
	int result = kernels < 0 ? -1 : REAL(fchdir)(kernels);

	if (kernels >= 0)
		nv_close_quietly(kernels);
	if (result != 0) {
		saved = may ? errno : saved;
		give(h, fd);
		return nv_error(saved);
	}
	errno = saved;
	atomic_store(&in_view, viewed >= 0);
	set_cwd(h, fd);
	return 0;
}

int nv_chdir(const char *path)
{
	struct nv_path_at at;

	if (!nv_route(AT_FDCWD, path, &at))
		return leave(REAL(chdir)(path));
	nv_handle h;

	do
		h = rt_open(&at, O_PATH | O_DIRECTORY, 0);
	while (nv_reroute(&at));
	if (at.outside) {
		char outside[strlen(at.path) + 1];

		nv_go_outside(&at, outside);
		return leave(REAL(chdir)(at.path));
	}
	return h < 0 ? -1 : enter(h, take(h, &at));
}

int nv_fchdir(int fd)
{
	nv_handle h = nv_ours(fd);
	struct stat st;

	if (h == 0)
		return leave(REAL(fchdir)(fd));
	if (rt_fstat(h, &st, sizeof st) != 0)
		return -1;
	if (!S_ISDIR(st.st_mode))
		return nv_error(ENOTDIR);
	if (nv_server(h) == 0)
		return rt_retain(h) != 0 ? -1 : enter(h, -1);
	int also = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, 0);

	return also < 0 ? -1 : enter(h, nv_own_descriptor(also, 1));
}

char *nv_getcwd(char *buf, size_t n)
{
	char path[NV_PATH];
	nv_handle h = nv_working();

	if (h == 0)
		return REAL(getcwd)(buf, n);
	int64_t length = rt_fpath(h, path, sizeof path);

	if (length < 0)
		return NULL;
	size_t need = (size_t)length + 1;

	if (n < need && (buf != NULL || n != 0)) {
		errno = n == 0 ? EINVAL : ERANGE;
		return NULL;
	}
	if (buf == NULL && (buf = malloc(n > need ? n : need)) == NULL)
		return NULL;
	memcpy(buf, path, (size_t)length);
	buf[length] = '\0';
	return buf;
}
