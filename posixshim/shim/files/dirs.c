/* Directory streams (opendir). As in POSIX, a stream is used by one thread at a time; there are no locks. */
#include <stdlib.h>

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

DIR *nv_opendir(struct nv_path_at *at)
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
	struct stat st;

	if (rt_fstat(h, &st, sizeof st) != 0)
		return NULL;
	if (!S_ISDIR(st.st_mode)) {
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
		nv_handle h = nv_handle_of(dir->fd);

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

void nv_seekdir(struct nv_dir *dir, long position)
{
	nv_handle h = nv_handle_of(dir->fd);
	int saved = errno;

	dir->next = dir->filled = 0;
	dir->position = position;
	if (h != 0)
		rt_seek(h, position, SEEK_SET);
	errno = saved;
}
