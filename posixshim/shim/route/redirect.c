/* Repeating a call in another process: in the one that has the partition now or, when that one has ended, in
 * this process or in nvmecr serve.
 *
 * Handles of one process mean nothing to another. So a path that is relative to an open directory is first made one that
 * begins at its mount. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nv.h"

static pthread_key_t paths_key;
static pthread_once_t paths_once = PTHREAD_ONCE_INIT;

static void release(void *memory)
{
	free(memory);
}

static void make_key(void)
{
	pthread_key_create(&paths_key, release);
}

/* thread_paths returns memory of this thread for two paths; NULL if malloc fails. */
static char *thread_paths(void)
{
	pthread_once(&paths_once, make_key);
	char *memory = pthread_getspecific(paths_key);

	if (memory == NULL && (memory = malloc(2 * NV_PATH)) != NULL)
		pthread_setspecific(paths_key, memory);
	return memory;
}

/* from_mount changes at, whose path is relative to an open directory, so that it begins at the root of the mount. path is
 * memory for the new path. It returns false if that cannot be done. */
static bool from_mount(struct nv_path_at *at, char *path)
{
	int server = nv_server(at->dir);
	size_t n = strlen(at->path);

	if (nv_is_mount(at->dir))
		return true;
	if (at->dir < 0 || (at->dir & NV_ITSELF) || path == NULL)
		return false;
	int64_t length = server != 0 ? nv_remote_fpath(server, at->dir, path, NV_PATH) : nv_rt.fpath(at->dir, path, NV_PATH);

	if (length < 0 || (size_t)length + n + 2 > NV_PATH)
		return false;
	path[length] = '/';
	memcpy(path + length + 1, at->path, n + 1);
	struct nv_path_at whole;

	if (!nv_route(AT_FDCWD, path, &whole))
		return false;
	at->dir = whole.dir;
	at->path = whole.path;
	return true;
}

/* nv_redirect is called when a call on one or two paths has returned NV_REDIRECT or NV_GONE. If the call can be repeated it
 * leaves the runtime, makes the paths begin at a mount, sets the server to ask, and returns true. */
bool nv_redirect(struct nv_visit *visit, int64_t result, struct nv_path_at *at, struct nv_path_at *also)
{
	bool served = nv_needs_server() && at->redirects < NV_MAX_REDIRECTS - 1; /* else the runtime's functions fail */
	int server = result != NV_GONE ? nv_add_server(strtoull(nv_outside, NULL, 16)) : served ? nv_host_server() : 0;
	bool relative = !nv_is_mount(at->dir) || (also != NULL && !nv_is_mount(also->dir));
	char *paths = relative ? thread_paths() : NULL;

	if ((result != NV_GONE && server == 0) || ++at->redirects > NV_MAX_REDIRECTS || !from_mount(at, paths) ||
	    (also != NULL && !from_mount(also, paths == NULL ? NULL : paths + NV_PATH)))
		return false;
	nv_leave(visit, 0);
	if (result == NV_GONE) /* the server may still have the partition for a moment */
		nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
	atomic_store(&nv_default_server, server);
	nv_cwd_redirected();
	return true;
}
