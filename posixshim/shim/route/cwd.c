/* The working directory.
 *
 * If it is ours, the kernel's working directory is the same directory of the view, if there is a view (view.c). Otherwise it is
 * a directory that has been removed. A program without this library then gets ENOENT for every relative path, and cannot
 * write a file somewhere else by mistake. The path of the removed directory names the working directory:
 *
 *     /tmp/nvmecr.cwd.NAME.XXXXXX/MOUNT/PATH (deleted)
 *
 * A program with this library that is executed there finds its working directory by reading /proc/self/cwd. NAME is the name
 * of the store.
 *
 * The variables are atomic: threads that call chdir at once each replace cwd and close the directory that they have replaced. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"
#include "nv.h"

#define MARK "/nvmecr.cwd."
#define DELETED " (deleted)"

/* The handle of the working directory; 0: it is not ours. CWD_UNOPENED: it is ours, its path is initial_path, and it has not
 * been opened yet. */
#define CWD_UNOPENED ((nv_handle)-1)
NV_EARLY static _Atomic nv_handle cwd;

/* The kernel's working directory is the same directory of the view. */
NV_EARLY static _Atomic bool in_view;

/* The descriptor by which a server keeps the directory open for this process; -1: none. */
static _Atomic int server_descriptor = -1;

/* The path that nv_init_cwd has found. */
static char initial_path[NV_PATH];

static const char *store_name(void)
{
	const char *name = nv_initial_env("NVMECR_NAME");

	return name != NULL && *name != '\0' ? name : "default";
}

/* opened_descriptor returns the descriptor that a server has sent for h, which rt_open has returned for at; -1: there is none. */
static int opened_descriptor(nv_handle h, const struct nv_path_at *at)
{
	return nv_server(h) != 0 ? nv_own_descriptor(at->descriptor, NV_OWN_OPENED) : -1;
}

/* close_directory closes a directory that was the working directory, or was opened to become it. */
static void close_directory(nv_handle h, int fd)
{
	if (fd >= 0) {
		nv_own_descriptor(fd, NV_OWN_CLOSING);
		REAL(close)(fd);
	}
	if (h > 0)
		rt_release(h);
}

/* find_removed sets initial_path from the path of the removed directory. */
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
	strcpy(initial_path, p);
	atomic_store(&cwd, CWD_UNOPENED);
}

/* find_in_view sets initial_path if the kernel's working directory is in the view. */
static __attribute__((noinline)) void find_in_view(void)
{
	char path[NV_PATH];
	bool own;
	const char *below = nv_kernel(SYS_getcwd, path, sizeof path) > 0 ? nv_path_in_view(path, &own) : NULL;

	if (below == NULL || snprintf(initial_path, sizeof initial_path, "%s/%s", nv_mount, below) >= (int)sizeof initial_path)
		return;
	atomic_store(&in_view, own);
	atomic_store(&cwd, CWD_UNOPENED);
}

/* nv_init_cwd is called before main, and in a forked child. getcwd with a buffer of no bytes fails with ENOENT in a removed
 * directory and with ERANGE in others. */
NV_EARLY_CODE void nv_init_cwd(void)
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

/* nv_cwd_in_view says that the kernel resolves relative paths in the view, and finds the same files as the runtime. */
bool nv_cwd_in_view(void)
{
	return atomic_load(&in_view);
}

/* nv_cwd returns the handle of the working directory: 0 if it is not ours, an invalid handle if it cannot be opened. */
NV_EARLY_CODE nv_handle nv_cwd(void)
{
	nv_handle h = atomic_load_explicit(&cwd, memory_order_acquire);

	if (__builtin_expect(h != CWD_UNOPENED, 1))
		return h;
	struct nv_path_at at;
	int saved = errno;

	h = nv_route(AT_FDCWD, initial_path, &at) ? rt_open(&at, O_PATH | O_DIRECTORY, 0) : -1;
	errno = saved;
	if (h < 0)
		return CWD_UNOPENED;
	nv_handle expected = CWD_UNOPENED;
	int fd = opened_descriptor(h, &at);

	if (!atomic_compare_exchange_strong(&cwd, &expected, h)) {
		close_directory(h, fd); /* another thread has set cwd first */
		return expected;
	}
	atomic_store(&server_descriptor, fd);
	return h;
}

/* nv_cwd_peek is nv_cwd, but does not open the directory: the handle may be CWD_UNOPENED. */
nv_handle nv_cwd_peek(void)
{
	return atomic_load(&cwd);
}

static void set_cwd(nv_handle h, int fd)
{
	nv_handle before = atomic_exchange(&cwd, h);

	close_directory(before, atomic_exchange(&server_descriptor, fd));
}

/* nv_drop_cwd is called in a forked child, in which the server's descriptor has been closed. */
void nv_drop_cwd(void)
{
	atomic_store(&server_descriptor, -1);
	nv_init_cwd();
}

/* nv_cwd_redirected is called when nv_default_server has changed. The directory is opened again, by the new server, when it is
 * needed. */
void nv_cwd_redirected(void)
{
	nv_handle before = atomic_load(&cwd);

	if (before <= 0)
		return;
	nv_init_cwd();
	close_directory(before, atomic_exchange(&server_descriptor, -1));
}

/* leave is given the result of a real chdir or fchdir, and returns it. */
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

/* make_directories makes each directory that the components of path from start on name. */
static bool make_directories(char *path, size_t start)
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

/* remove_directories removes those directories, and the one that the path before start names. */
static void remove_directories(char *path, size_t start)
{
	for (size_t n = strlen(path); n >= start; n = (size_t)(strrchr(path, '/') - path)) {
		path[n] = '\0';
		REAL(rmdir)(path);
	}
}

/* open_removed opens a removed directory whose path names the directory h. */
static int open_removed(nv_handle h)
{
	char where[NV_PATH], path[NV_PATH];
	const char *base = nv_initial_env("XDG_RUNTIME_DIR");

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
	int fd = make_directories(path, (size_t)root) ? open_directory(path) : -1, saved = errno;

	remove_directories(path, (size_t)root);
	errno = saved;
	return fd;
}

/* enter makes the open directory h the working directory, which needs search permission and not read permission. It owns h and
 * fd from then on, also when it fails. */
static int enter(nv_handle h, int fd)
{
	struct nv_path_at at = {.dir = h, .path = "."};
	bool may = rt_access(&at, X_OK, AT_EACCESS) == 0;
	int saved = errno, viewed = may ? nv_open_in_view(h) : -1, directory = may && viewed < 0 ? open_removed(h) : viewed;
	int result = directory < 0 ? -1 : REAL(fchdir)(directory);

	if (directory >= 0)
		nv_close_quietly(directory);
	if (result != 0) {
		saved = may ? errno : saved;
		close_directory(h, fd);
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
	return h < 0 ? -1 : enter(h, opened_descriptor(h, &at));
}

int nv_fchdir(int fd)
{
	nv_handle h = nv_handle_of(fd);
	struct stat st;

	if (h == 0)
		return leave(REAL(fchdir)(fd));
	if (rt_fstat(h, &st, sizeof st) != 0)
		return -1;
	if (!S_ISDIR(st.st_mode))
		return nv_error(ENOTDIR);
	if (nv_server(h) == 0)
		return rt_retain(h) != 0 ? -1 : enter(h, -1);
	int duplicate = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, 0);

	return duplicate < 0 ? -1 : enter(h, nv_own_descriptor(duplicate, NV_OWN_OPENED));
}

char *nv_getcwd(char *buf, size_t n)
{
	char path[NV_PATH];
	nv_handle h = nv_cwd();

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
