/* Directory streams. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

static DIR *stream_of(int fd)
{
	struct nv_dir *dir = malloc(sizeof *dir);

	if (dir == NULL)
		return NULL;
	dir->magic = NV_DIR_MAGIC;
	dir->fd = fd;
	dir->next = dir->filled = 0;
	dir->position = 0;
	return (DIR *)dir;
}

DIR *nv_opendir(struct nv_place *at)
{
	int fd = nv_open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	if (fd < 0)
		return NULL;
	DIR *stream = stream_of(fd);

	if (stream == NULL) {
		nv_close(fd);
		errno = ENOMEM;
	}
	return stream;
}

DIR *nv_fdopendir(int fd, nv_handle h)
{
	struct nv_attr attr;

	if (rt_fstat(h, &attr) != 0)
		return NULL;
	if (!S_ISDIR(attr.mode)) {
		errno = ENOTDIR;
		return NULL;
	}
	return stream_of(fd);
}

int nv_closedir(struct nv_dir *dir)
{
	int fd = dir->fd;

	dir->magic = 0;
	free(dir);
	return nv_close(fd);
}

struct dirent *nv_readdir(struct nv_dir *dir)
{
	if (dir->next >= dir->filled) {
		nv_handle h = nv_ours(dir->fd);

		if (h == 0) {
			errno = EBADF;
			return NULL;
		}
		int64_t n = rt_getdents(h, dir->buf, sizeof dir->buf);

		if (n <= 0)
			return NULL;
		dir->next = 0;
		dir->filled = (size_t)n;
	}
	struct dirent *entry = (struct dirent *)(dir->buf + dir->next);

	dir->next += entry->d_reclen;
	dir->position = entry->d_off;
	return entry;
}

int nv_readdir_r(struct nv_dir *dir, struct dirent *entry, struct dirent **result)
{
	int saved = errno;

	errno = 0;
	struct dirent *found = nv_readdir(dir);
	int error = found == NULL ? errno : 0;

	if (found != NULL)
		memcpy(entry, found, found->d_reclen);
	*result = found != NULL ? entry : NULL;
	errno = saved;
	return error;
}

void nv_seekdir(struct nv_dir *dir, long position)
{
	nv_handle h = nv_ours(dir->fd);
	int saved = errno;

	dir->next = dir->filled = 0;
	dir->position = position;
	if (h != 0)
		rt_seek(h, position, SEEK_SET);
	errno = saved;
}

void nv_rewinddir(struct nv_dir *dir)
{
	nv_seekdir(dir, 0);
}

long nv_telldir(struct nv_dir *dir)
{
	return dir->position;
}

/* A growing list of entries, each in memory of its own as scandir has it. */
struct list {
	struct dirent **entries;
	size_t count, room;
};

static void free_list(struct list *list)
{
	while (list->count > 0)
		free(list->entries[--list->count]);
	free(list->entries);
}

static bool append(struct list *list, const struct dirent *entry)
{
	if (list->count == list->room) {
		size_t room = list->room == 0 ? 64 : 2 * list->room;
		struct dirent **grown = realloc(list->entries, room * sizeof *grown);

		if (grown == NULL)
			return false;
		list->entries = grown;
		list->room = room;
	}
	struct dirent *copy = malloc(entry->d_reclen);

	if (copy == NULL)
		return false;
	memcpy(copy, entry, entry->d_reclen);
	list->entries[list->count++] = copy;
	return true;
}

static bool collect(struct nv_dir *dir, struct list *list, int (*filter)(const struct dirent *))
{
	for (;;) {
		errno = 0;
		struct dirent *entry = nv_readdir(dir);

		if (entry == NULL)
			return errno == 0;
		if ((filter == NULL || filter(entry)) && !append(list, entry))
			return false;
	}
}

int nv_scandir(struct nv_place *at, struct dirent ***names, int (*filter)(const struct dirent *),
	       int (*compare)(const struct dirent **, const struct dirent **))
{
	struct list list = {0};
	int saved = errno;
	struct nv_dir *dir = (struct nv_dir *)nv_opendir(at);

	if (dir == NULL)
		return -1;
	if (!collect(dir, &list, filter)) {
		saved = errno;
		free_list(&list);
		nv_closedir(dir);
		return nv_error(saved);
	}
	nv_closedir(dir);
	if (compare != NULL && list.count > 1)
		qsort(list.entries, list.count, sizeof *list.entries, (int (*)(const void *, const void *))compare);
	*names = list.entries;
	errno = saved;
	return (int)list.count;
}
