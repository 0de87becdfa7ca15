/* File actions of posix_spawn that open files of the mount, or lead into it.
 *
 * The C library carries them out in a child that has not the runtime. So the files
 * are opened here, before there is a child, which then duplicates a descriptor
 * instead, or for a directory goes to what stands for it (cwd.c). What the actions are, which the C library keeps to itself, is written
 * down as they are added: behind those it has, in room of the object that it does
 * not use. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

enum kind { ADD_OPEN, ADD_CLOSE, ADD_DUP2, ADD_CHDIR, ADD_FCHDIR, ADD_CLOSEFROM, ADD_TERMINAL };

struct action {
	enum kind kind;
	int fd; /* that it is about */
	int to; /* of ADD_DUP2 */
	int flags;
	mode_t mode;
	char *path;
};

struct nv_actions {
	size_t count, room;
	struct action *action;
};

/* What is in that room once there is an action: init empties it. */
struct note {
	uint64_t magic;
	struct nv_actions *list;
};

#define MAGIC UINT64_C(0x7370776e2d72636d)
#define NOTE(object) ((char *)(object) + sizeof *(object) - sizeof(struct note))

_Static_assert(sizeof((posix_spawn_file_actions_t *)0)->__pad >= sizeof(struct note), "there is no such room");

static struct nv_actions *list_of(const posix_spawn_file_actions_t *object)
{
	struct note note = {.magic = 0};

	if (object != NULL && nv_mounted)
		memcpy(&note, NOTE(object), sizeof note);
	return note.magic == MAGIC ? note.list : NULL;
}

static struct nv_actions *new_list(posix_spawn_file_actions_t *object)
{
	struct note note = {MAGIC, calloc(1, sizeof *note.list)};

	if (note.list != NULL)
		memcpy(NOTE(object), &note, sizeof note);
	return note.list;
}

/* note_action writes down an action that the C library has added. */
static int note_action(posix_spawn_file_actions_t *object, const struct action *a)
{
	struct nv_actions *list = list_of(object);

	if (list == NULL)
		list = new_list(object);
	if (list == NULL)
		return ENOMEM;
	if (list->count == list->room) {
		size_t room = 2 * list->room + 4;
		struct action *more = realloc(list->action, room * sizeof *more);

		if (more == NULL)
			return ENOMEM;
		list->action = more;
		list->room = room;
	}
	struct action *next = &list->action[list->count];

	*next = *a;
	if (a->path != NULL && (next->path = strdup(a->path)) == NULL)
		return ENOMEM;
	list->count++;
	return 0;
}

/* noted is what adding an action returns, which the C library has added or not. What
 * it has added and is not written down must not be carried out: the caller, who is told of
 * the error, does not go on with the object. */
static int noted(int result, posix_spawn_file_actions_t *object, const struct action *a)
{
	int saved = errno;

	if (result == 0 && nv_mounted)
		result = note_action(object, a);
	errno = saved;
	return result;
}

int nv_add_open(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags, mode_t mode)
{
	return noted(REAL(posix_spawn_file_actions_addopen)(actions, fd, path, flags, mode), actions,
		     &(struct action){.kind = ADD_OPEN, .fd = fd, .path = (char *)path, .flags = flags, .mode = mode});
}

int nv_add_close(posix_spawn_file_actions_t *actions, int fd)
{
	return noted(REAL(posix_spawn_file_actions_addclose)(actions, fd), actions,
		     &(struct action){.kind = ADD_CLOSE, .fd = fd});
}

int nv_add_dup2(posix_spawn_file_actions_t *actions, int fd, int to)
{
	return noted(REAL(posix_spawn_file_actions_adddup2)(actions, fd, to), actions,
		     &(struct action){.kind = ADD_DUP2, .fd = fd, .to = to});
}

int nv_add_chdir(posix_spawn_file_actions_t *actions, const char *path)
{
	return noted(REAL(posix_spawn_file_actions_addchdir_np)(actions, path), actions,
		     &(struct action){.kind = ADD_CHDIR, .fd = -1, .path = (char *)path});
}

int nv_add_fchdir(posix_spawn_file_actions_t *actions, int fd)
{
	return noted(REAL(posix_spawn_file_actions_addfchdir_np)(actions, fd), actions,
		     &(struct action){.kind = ADD_FCHDIR, .fd = fd});
}

int nv_add_closefrom(posix_spawn_file_actions_t *actions, int from)
{
	return noted(REAL(posix_spawn_file_actions_addclosefrom_np)(actions, from), actions,
		     &(struct action){.kind = ADD_CLOSEFROM, .fd = from});
}

int nv_add_terminal(posix_spawn_file_actions_t *actions, int fd)
{
	return noted(REAL(posix_spawn_file_actions_addtcsetpgrp_np)(actions, fd), actions,
		     &(struct action){.kind = ADD_TERMINAL, .fd = fd});
}

int nv_destroy_actions(posix_spawn_file_actions_t *actions)
{
	struct nv_actions *list = list_of(actions);

	if (list != NULL) {
		for (size_t i = 0; i < list->count; i++)
			free(list->action[i].path);
		free(list->action);
		free(list);
		memset(NOTE(actions), 0, sizeof(struct note));
	}
	return REAL(posix_spawn_file_actions_destroy)(actions);
}

/* ---- carrying them out ---- */

/* target is the number that an action changes, -1 if none. */
static int target(const struct action *a)
{
	switch (a->kind) {
	case ADD_OPEN:
	case ADD_CLOSE:
		return a->fd;
	case ADD_DUP2:
		return a->to;
	default:
		return -1;
	}
}

/* changed says whether an action of [i, end) changes a number of [low, high]. */
static bool changed(const struct nv_actions *list, size_t i, size_t end, int low, int high)
{
	for (; i < end; i++)
		if (target(&list->action[i]) >= low && target(&list->action[i]) <= high)
			return true;
	return false;
}

/* find makes of a path, as the child has it before action i, one that is for this
 * process: what is relative begins where the actions before have led. It fails where
 * that is too long, or is a descriptor that they have made; that is left to the child. */
static bool find(const struct nv_actions *list, size_t i, const char *path, struct nv_spawn_path *p)
{
	char *start = p->room + sizeof p->room - 1;

	*start = '\0';
	p->dir = AT_FDCWD;
	if (*path == '\0')
		return false;
	for (;; path = list->action[i].path) {
		size_t n = strlen(path) + (*start != '\0');

		if (n > (size_t)(start - p->room))
			return false;
		if (*start != '\0')
			start[-1] = '/';
		p->path = start = memcpy(start - n, path, strlen(path));
		while (*path != '/' && i > 0 && list->action[i - 1].kind != ADD_CHDIR && list->action[i - 1].kind != ADD_FCHDIR)
			i--;
		if (*path == '/' || i-- == 0)
			return true;
		if (list->action[i].kind == ADD_FCHDIR) {
			p->dir = list->action[i].fd;
			return !changed(list, 0, i, p->dir, p->dir);
		}
	}
}

/* ours says whether an action opens a file of the mount, or leads into it. */
static bool ours(const struct nv_actions *list, size_t i)
{
	const struct action *a = &list->action[i];
	struct nv_spawn_path p;
	struct nv_place at;

	if (a->kind == ADD_FCHDIR)
		return nv_ours(a->fd) != 0 && !changed(list, 0, i, a->fd, a->fd);
	return (a->kind == ADD_OPEN || a->kind == ADD_CHDIR) && find(list, i, a->path, &p) && nv_route(p.dir, p.path, &at);
}

/* highest is the highest number that an action is about. */
static int highest(const struct nv_actions *list)
{
	int n = 2;

	for (size_t i = 0; i < list->count; i++) {
		n = list->action[i].fd > n ? list->action[i].fd : n;
		n = list->action[i].to > n ? list->action[i].to : n;
	}
	return n;
}

/* open_directory opens what stands for a directory that an action leads to. */
static int open_directory(const struct action *a, const struct nv_spawn_path *p)
{
	int fd = a->kind == ADD_FCHDIR ? dup(a->fd) : openat(p->dir, p->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	nv_handle h = fd < 0 ? 0 : nv_ours(fd);

	if (h == 0)
		return fd; /* the path has led out of the mount */
	struct stat st;
	int stand_in = fstat(fd, &st) != 0 ? -1 : S_ISDIR(st.st_mode) ? nv_sunk(h) : nv_error(ENOTDIR), saved = errno;

	close(fd);
	errno = saved;
	return stand_in;
}

/* open_here opens what action i needs, under a number that no action is about, which
 * the child has until it executes the program. */
static int open_here(struct nv_spawn_files *s, const struct nv_actions *list, size_t i, int above)
{
	const struct action *a = &list->action[i];
	struct nv_spawn_path p;

	if (a->path != NULL)
		find(list, i, a->path, &p);
	int fd = a->kind == ADD_OPEN ? openat(p.dir, p.path, a->flags | O_CLOEXEC, a->mode) : open_directory(a, &p);
	int moved = fd < 0 || fd > above ? fd : fcntl(fd, F_DUPFD_CLOEXEC, above + 1);
	int error = errno;

	if (fd >= 0 && moved != fd)
		close(fd);
	if (moved < 0)
		return error;
	s->opened[s->count++] = moved;
	return a->kind == ADD_OPEN ? REAL(posix_spawn_file_actions_adddup2)(&s->own, moved, a->fd)
				   : REAL(posix_spawn_file_actions_addfchdir_np)(&s->own, moved);
}

/* add adds an action as it is. */
static int add(posix_spawn_file_actions_t *to, const struct action *a)
{
	switch (a->kind) {
	case ADD_OPEN:
		return REAL(posix_spawn_file_actions_addopen)(to, a->fd, a->path, a->flags, a->mode);
	case ADD_CLOSE:
		return REAL(posix_spawn_file_actions_addclose)(to, a->fd);
	case ADD_DUP2:
		return REAL(posix_spawn_file_actions_adddup2)(to, a->fd, a->to);
	case ADD_CHDIR:
		return REAL(posix_spawn_file_actions_addchdir_np)(to, a->path);
	case ADD_FCHDIR:
		return REAL(posix_spawn_file_actions_addfchdir_np)(to, a->fd);
	case ADD_CLOSEFROM:
		return REAL(posix_spawn_file_actions_addclosefrom_np)(to, a->fd);
	case ADD_TERMINAL:
		return REAL(posix_spawn_file_actions_addtcsetpgrp_np)(to, a->fd);
	}
	return EINVAL;
}

/* add_all adds all actions, of which the last one that is ours is before end. What closes
 * all numbers from one on does so behind that, since it would close what is opened here. */
static int add_all(struct nv_spawn_files *s, const struct nv_actions *list, size_t end)
{
	int above = highest(list), error = 0;
	const struct action *put_off = NULL;

	for (size_t i = 0; i < list->count && error == 0; i++) {
		const struct action *a = &list->action[i];

		if (i < end && ours(list, i))
			error = open_here(s, list, i, above);
		else if (i < end && a->kind == ADD_CLOSEFROM && !changed(list, i, end, a->fd, INT_MAX))
			put_off = put_off == NULL || a->fd < put_off->fd ? a : put_off;
		else
			error = add(&s->own, a);
		if (i + 1 == end && put_off != NULL && error == 0)
			error = add(&s->own, put_off);
	}
	return error;
}

/* add_closes closes what was opened to be closed when the program is executed, which
 * the duplicate is not. */
static int add_closes(struct nv_spawn_files *s, const struct nv_actions *list, size_t end)
{
	int error = 0;

	for (size_t i = 0; i < end && error == 0; i++) {
		const struct action *a = &list->action[i];

		if ((a->flags & O_CLOEXEC) && ours(list, i) && !changed(list, i + 1, list->count, a->fd, a->fd))
			error = REAL(posix_spawn_file_actions_addclose)(&s->own, a->fd);
	}
	return error;
}

/* nv_open_spawn_files opens the files and directories of the mount that given is about. The actions that the
 * child is to carry out are then those of s. It returns an errno. */
int nv_open_spawn_files(struct nv_spawn_files *s, const posix_spawn_file_actions_t *given)
{
	const struct nv_actions *list = list_of(given);
	size_t end = list == NULL ? 0 : list->count;
	int saved = errno;

	s->actions = s->given = given;
	s->opened = NULL;
	s->count = 0;
	while (end > 0 && !ours(list, end - 1))
		end--;
	if (end == 0)
		return 0;
	s->opened = malloc(end * sizeof *s->opened);
	if (s->opened == NULL || posix_spawn_file_actions_init(&s->own) != 0) {
		free(s->opened);
		s->opened = NULL;
		return ENOMEM;
	}
	s->actions = &s->own;
	int error = add_all(s, list, end);

	if (error == 0)
		error = add_closes(s, list, end);
	if (error != 0)
		nv_close_spawn_files(s);
	errno = saved;
	return error;
}

void nv_close_spawn_files(struct nv_spawn_files *s)
{
	int saved = errno;

	if (s->opened == NULL)
		return;
	while (s->count > 0)
		close(s->opened[--s->count]);
	free(s->opened);
	s->opened = NULL;
	REAL(posix_spawn_file_actions_destroy)(&s->own);
	errno = saved;
}

/* nv_spawn_route is nv_route for a path of the program, where the child executes it. */
bool nv_spawn_route(const struct nv_spawn_files *s, const char *path, struct nv_spawn_path *p, struct nv_place *at)
{
	const struct nv_actions *list = list_of(s->given);

	if (list == NULL || nv_nowhere(path) || !nv_string(path) || *path == '/')
		return nv_route(AT_FDCWD, path, at);
	return find(list, list->count, path, p) && nv_route(p->dir, p->path, at);
}
