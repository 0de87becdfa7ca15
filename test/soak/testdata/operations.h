/*
 * The operations of rank.c, which includes this where their helpers are known.
 * Each is noted in the journal before and after.
 */
static void op_close(struct actor *a, int h)
{
	struct slot *s = &a->slots[h];

	if (s->fd < 0)
		return;
	begin(a, "close %d", h);
	int failed = s->stream != NULL && fclose(s->stream) != 0;
	failed = close(s->fd) != 0 || failed;
	*s = (struct slot){ .fd = -1 };
	end(a, failed ? -1 : 0, "");
}

/* how: c(reate), t(runcate), a(ppend), e(x)clusive, s(tream). */
static int op_open(struct actor *a, int h, const char *name, const char *how)
{
	struct slot *s = &a->slots[h];
	const char *p = path(a, name);
	int flags = O_RDWR;

	op_close(a, h);
	flags |= strchr(how, 'c') ? O_CREAT : 0;
	flags |= strchr(how, 't') ? O_TRUNC : 0;
	flags |= strchr(how, 'a') ? O_APPEND : 0;
	flags |= strchr(how, 'x') ? O_EXCL : 0;
	flags |= tree ? O_DSYNC : 0;
	begin(a, "open %d %s %s", h, name, how);
	if (strchr(how, 's')) {
		s->stream = fopen(p, strchr(how, 't') ? "w" : "a");
		s->fd = s->stream == NULL ? -1 : open(p, O_RDWR);
	} else {
		s->fd = open(p, flags, 0600);
	}
	s->append = strchr(how, 'a') != NULL;
	s->at = 0;
	return end(a, s->fd < 0 ? -1 : 0, "") == 0;
}

static off_t position(struct slot *s)
{
	struct stat st;

	if (s->stream != NULL && !s->append)
		return s->at;
	if (s->stream != NULL)
		return fseeko(s->stream, 0, SEEK_END) != 0 ? -1 : ftello(s->stream);
	if (s->append)
		return fstat(s->fd, &st) != 0 ? -1 : st.st_size;
	return lseek(s->fd, 0, SEEK_CUR);
}

/* How much of a write arrived that a stream made of pieces. */
static size_t arrived(struct actor *a, int fd, off_t at, size_t n)
{
	unsigned char *found = malloc(n);
	ssize_t got = found == NULL ? -1 : pread(fd, found, n, at);
	size_t k = 0;

	if (got < 0)
		unreadable("what a stream has written");
	while (k < (size_t)got && found[k] == a->data[k])
		k++;
	free(found);
	return k;
}

static long op_stream(struct actor *a, int h, size_t n)
{
	struct slot *s = &a->slots[h];
	off_t at = position(s);

	if (at < 0)
		unreadable("the position of a stream");
	begin(a, "stream %d %ld %zu", h, (long)at, n);
	fill(a, a->data, at, n);
	if (fwrite(a->data, 1, n, s->stream) == n && fflush(s->stream) == 0 && (!tree || fdatasync(fileno(s->stream)) == 0)) {
		s->at += n;
		return end(a, n, "");
	}
	int error = errno;
	__fpurge(s->stream);
	long k = error == ENOSPC ? (long)arrived(a, s->fd, at, n) : 0;
	errno = error;
	end(a, k > 0 ? k : -1, "");
	op_close(a, h);
	errno = error;
	return -1;
}

static long op_write(struct actor *a, int h, size_t n)
{
	struct slot *s = &a->slots[h];
	long result;

	if (s->stream != NULL)
		return op_stream(a, h, n);
	int positional = !s->append && chance(a, 2);
	off_t at = positional ? (off_t)chance(a, chance(a, 20) ? 1 << 20 : 4 << 20) : position(s);
	if (at < 0)
		unreadable("the position of a file");
	if (at > 32 << 20)
		return 0;
	int vector = chance(a, 4) == 0;
	begin(a, "%s %d %ld %zu", positional ? "pwrite" : "write", h, (long)at, n);
	fill(a, a->data, at, n);
	size_t cut = chance(a, n + 1);
	struct iovec iov[2] = { { a->data, cut }, { a->data + cut, n - cut } };
	if (positional)
		result = vector ? pwritev(s->fd, iov, 2, at) : pwrite(s->fd, a->data, n, at);
	else
		result = vector ? writev(s->fd, iov, 2) : write(s->fd, a->data, n);
	return end(a, result, "");
}

static void op_read(struct actor *a, int h)
{
	off_t at = chance(a, chance(a, 2) ? 64 << 10 : 1 << 20);
	size_t n = 1 + chance(a, READ);

	begin(a, "read %d %ld %zu", h, (long)at, n);
	long got = pread(a->slots[h].fd, a->data, n, at);
	end(a, got, sums(a->data, got));
}

static void op_stat(struct actor *a)
{
	char name[32], more[64];
	struct stat st;

	begin(a, "stat %s", some_file(a, name));
	long result = lstat(path(a, name), &st);
	more[0] = 0;
	if (result == 0)
		snprintf(more, sizeof more, " %ld %ld", (long)st.st_size, (long)st.st_nlink);
	end(a, result, more);
}

static void op_unlink(struct actor *a)
{
	char name[32];

	begin(a, "unlink %s", some_file(a, name));
	end(a, unlink(path(a, name)), "");
}

static void op_rename(struct actor *a, const char *from, const char *to)
{
	begin(a, "rename %s %s", from, to);
	end(a, rename(path(a, from), path(a, to)), "");
}

static void op_name(struct actor *a)
{
	char x[32], y[32];
	int d = chance(a, 2);

	switch (chance(a, 8)) {
	case 0:
		op_unlink(a);
		break;
	case 1:
		some_file(a, x);
		op_rename(a, x, some_file(a, y));
		break;
	case 2:
		begin(a, "link %s %s", some_file(a, x), some_file(a, y));
		end(a, link(path(a, x), path(a, y)), "");
		break;
	case 3:
		begin(a, "symlink target-%u s%d", a->version + 1, d);
		sprintf(x, "s%d", d);
		sprintf(y, "target-%u", a->version);
		end(a, symlink(y, path(a, x)), "");
		break;
	case 4:
		begin(a, "unlink s%d", d);
		sprintf(x, "s%d", d);
		end(a, unlink(path(a, x)), "");
		break;
	case 5:
		begin(a, "rmdir d%d", d);
		sprintf(x, "d%d", d);
		end(a, rmdir(path(a, x)), "");
		break;
	case 6:
		sprintf(x, "d%d", d);
		sprintf(y, "d%d", !d);
		op_rename(a, x, y);
		/* fall through */
	default:
		begin(a, "mkdir d%d", d);
		sprintf(x, "d%d", d);
		end(a, mkdir(path(a, x), 0700), "");
	}
}

static void op_truncate(struct actor *a, int h)
{
	char name[32];
	off_t n = chance(a, chance(a, 3) ? 64 << 10 : 1 << 20);

	if (a->slots[h].fd >= 0 && a->slots[h].stream == NULL) {
		begin(a, "ftruncate %d %ld", h, (long)n);
		end(a, ftruncate(a->slots[h].fd, n), "");
		return;
	}
	begin(a, "truncate %s %ld", some_file(a, name), (long)n);
	end(a, truncate(path(a, name), n), "");
}

static void op_sync(struct actor *a, int h)
{
	begin(a, "fsync %d", h);
	end(a, fsync(a->slots[h].fd), "");
}
