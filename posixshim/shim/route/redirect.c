/* Going on with a call in another process: the one that has the partition now, or
 * this one when that has ended. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nv.h"

static pthread_key_t joined_key;
static pthread_once_t joined_once = PTHREAD_ONCE_INIT;

static void release(void *memory)
{
	free(memory);
}

static void make_key(void)
{
	pthread_key_create(&joined_key, release);
}

/* joined is memory of this thread for two paths; NULL if there is none. */
static char *joined(void)
{
	pthread_once(&joined_once, make_key);
	char *memory = pthread_getspecific(joined_key);

	if (memory == NULL && (memory = malloc(2 * NV_PATH)) != NULL)
		pthread_setspecific(joined_key, memory);
	return memory;
}

/* from_mount makes a place that is relative to an open directory one that begins
 * at the root of its mount, with memory for its path. */
static bool from_mount(struct nv_path_at *at, char *path)
{
	int server = nv_server(at->dir);
	size_t n = strlen(at->path);

	if (nv_root(at->dir))
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

/* nv_redirect finds where a call is to be made again: with the process that has the
 * partition, or here if that one has ended. If there is such a place it ends
 * the visit. Paths then begin at a mount: open directories are not there. */
bool nv_redirect(struct nv_visit *visit, int64_t result, struct nv_path_at *at, struct nv_path_at *also)
{
	int server = result == NV_GONE ? 0 : nv_add_server(strtoull(nv_outside, NULL, 16));
	bool relative = !nv_root(at->dir) || (also != NULL && !nv_root(also->dir));
	char *paths = relative ? joined() : NULL;

	if ((result != NV_GONE && server == 0) || ++at->moves > NV_MOVES || !from_mount(at, paths) ||
	    (also != NULL && !from_mount(also, paths == NULL ? NULL : paths + NV_PATH)))
		return false;
	nv_leave(visit, 0);
	if (result == NV_GONE) /* it is about to give up what it has */
		nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
	atomic_store(&nv_home, server);
	nv_working_redirected();
	return true;
}
