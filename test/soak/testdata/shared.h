/*
 * What all ranks do to files that they have in common, where they have one tree. rank.c includes this. The file `cells` is written and read
 * by cells, whoever has them locked; to `log.ROUND` all append.
 *
 * What was acknowledged is in SOAK_SHARED, a directory outside the mount:
 *
 *	cells   for each cell of the file which versions its bytes may have; who uses a cell has that part locked
 *	synced  records of the log that a sync has returned for: ROUND ID NUMBER
 *	failed  calls that failed, with the time, and cells that were wrong: TIME ERRNO WHAT
 */
enum { CELL = 10007, CELLS = 300, MOST = 8, RECORD = 20000, SHARED = 127 };

/* Each byte of a cell is of the version known, or of one from low to high, or zero if that may be. Version 0 is zeros. */
struct cell {
	uint32_t known, low, high, zero;
	uint32_t next;
};

static struct actor common; /* its random numbers and memory */
static const char *shared;  /* SOAK_SHARED, NULL: there is nothing in common */
static int cells_state = -1, cells = -1, log_file = -1, synced = -1;
static unsigned record_id, record_number, record_synced;

static const char *shared_path(const char *name)
{
	static char paths[2][4096];
	static int turn;

	turn = !turn;
	snprintf(paths[turn], sizeof paths[turn], "%s/shared%s%s", mount, *name ? "/" : "", name);
	return paths[turn];
}

static int state_file(const char *name, int flags)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", shared, name);
	int fd = open(path, flags | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		die(path);
	return fd;
}

/* A line for the judge. */
__attribute__((format(printf, 2, 3))) static void report(int error, const char *format, ...)
{
	char line[512];
	int n = snprintf(line, sizeof line, "%lld %d ", now(), error), fd = state_file("failed", O_WRONLY | O_APPEND);
	va_list args;

	va_start(args, format);
	n += vsnprintf(line + n, sizeof line - n - 2, format, args);
	va_end(args);
	line[n++] = '\n';
	if (write(fd, line, n) != n)
		die("failed");
	close(fd);
}

/* A call has failed: the rank ends with it. Where all is full nothing is acknowledged, and it goes on. */
static int refused(const char *what)
{
	if (errno == ENOSPC)
		return -1;
	int error = errno;
	report(error, "%s", what);
	fprintf(stderr, "soak: rank %d: %s: %s\n", rank, what, strerror(error));
	give_up();
}

static void lock_cells(int first, int n, int how)
{
	struct flock l = { .l_type = how, .l_start = first * sizeof(struct cell), .l_len = n * sizeof(struct cell) };

	if (fcntl(cells_state, F_OFD_SETLKW, &l) != 0)
		die("lock of cells");
}

static void load(int first, int n, struct cell *c)
{
	memset(c, 0, n * sizeof *c);
	if (pread(cells_state, c, n * sizeof *c, first * sizeof *c) < 0)
		die("cells");
	for (int i = 0; i < n; i++)
		if (c[i].next == 0)
			c[i] = (struct cell){ .low = 1, .next = 1 };
}

static void store(int first, int n, const struct cell *c)
{
	if (pwrite(cells_state, c, n * sizeof *c, first * sizeof *c) != (ssize_t)(n * sizeof *c))
		die("cells");
}

static int open_cells(void)
{
	if (cells < 0)
		cells = open(shared_path("cells"), O_RDWR | O_CREAT, 0600);
	return cells < 0 ? refused("open of cells") : 0;
}

static int close_cells(void)
{
	int fd = cells;

	cells = -1;
	return fd >= 0 && close(fd) != 0 ? refused("close of cells") : 0;
}

/* A lock of the mount, besides that outside: it is there for the asking. */
static void lock_inside(int cell, int how)
{
	struct flock l = { .l_type = how, .l_start = cell * CELL, .l_len = CELL };

	if (fcntl(cells, F_SETLKW, &l) != 0)
		refused("lock of a cell");
}

static int write_cell(struct actor *a, int k, uint32_t version)
{
	off_t at = (off_t)k * CELL;
	size_t cut = chance(a, 2) ? CELL : chance(a, CELL);
	int locks = chance(a, 4) == 0;

	a->version = version;
	fill(a, a->data, at, CELL);
	if (locks)
		lock_inside(k, F_WRLCK);
	if (pwrite(cells, a->data, cut, at) != (ssize_t)cut)
		return refused("write of a cell");
	if (cut < CELL && pwrite(cells, a->data + cut, CELL - cut, at + cut) != (ssize_t)(CELL - cut))
		return refused("write of the rest of a cell");
	if (locks)
		lock_inside(k, F_UNLCK);
	return 0;
}

/* Some cells at equal distances, locked. */
struct stride {
	int first, step, n;
};

static struct stride some_cells(struct actor *a, int how)
{
	struct stride s = { .step = 1 + chance(a, 8), .n = 1 + chance(a, MOST) };

	s.first = chance(a, CELLS - s.step * s.n);
	for (int i = 0; i < s.n; i++)
		lock_cells(s.first + i * s.step, 1, how);
	return s;
}

static void unlock(struct stride s) { lock_cells(s.first, s.step * s.n, F_UNLCK); }

static void write_cells(struct actor *a)
{
	struct stride s = some_cells(a, F_WRLCK);
	struct cell c[MOST];
	int failed = 0;

	for (int i = 0; i < s.n; i++) {
		load(s.first + i * s.step, 1, &c[i]);
		if (c[i].low > c[i].high)
			c[i].low = c[i].next;
		c[i].high = c[i].next++;
		store(s.first + i * s.step, 1, &c[i]);
	}
	failed = open_cells() != 0;
	for (int i = 0; i < s.n && !failed; i++)
		failed = write_cell(a, s.first + i * s.step, c[i].high) != 0;
	if (!failed)
		failed = chance(a, 3) ? fsync(cells) != 0 && refused("sync of cells") : close_cells() != 0;
	for (int i = 0; i < s.n && !failed; i++) {
		c[i].known = c[i].high;
		c[i].low = 1, c[i].high = c[i].zero = 0;
		store(s.first + i * s.step, 1, &c[i]);
	}
	unlock(s);
	if (failed)
		close_cells();
}

static int byte_of(uint32_t version, off_t at)
{
	uint64_t word = mix((uint64_t)(SHARED * ACTORS + 1) << 56 | (uint64_t)version << 24 | (uint64_t)at / 8);

	return version == 0 ? 0 : ((unsigned char *)&word)[at % 8];
}

static int allowed(const struct cell *c, int byte, off_t at)
{
	if (byte == byte_of(c->known, at) || (c->zero && byte == 0))
		return 1;
	for (uint32_t v = c->low; v <= c->high; v++)
		if (byte == byte_of(v, at))
			return 1;
	return 0;
}

static void judge(int k, const struct cell *c, const unsigned char *found, const char *how)
{
	for (int i = 0; i < CELL; i++) {
		off_t at = (off_t)k * CELL + i;
		if (allowed(c, found[i], at))
			continue;
		report(0, "byte %ld (of cell %d, by %s) is %02x, and must be of version %u, or %u to %u, zero %u", (long)at, k, how, found[i], c->known, c->low,
			c->high, c->zero);
		fprintf(stderr, "soak: rank %d: a cell is wrong\n", rank);
		_exit(FAILED);
	}
}

/* What others have synced before is seen by an open, and by a sync. */
static void read_cells(struct actor *a)
{
	struct stride s = some_cells(a, F_RDLCK);
	int mine = chance(a, 2), fd = -1;
	const char *how = mine ? "a sync" : "an open";

	if (mine && open_cells() == 0 && fsync(cells) != 0)
		refused("sync of cells");
	if (mine)
		fd = cells;
	else if ((fd = open(shared_path("cells"), O_RDONLY)) < 0 && errno != ENOENT)
		refused("open of cells to be read");
	for (int i = 0; i < s.n && fd >= 0; i++) {
		struct cell c;
		int k = s.first + i * s.step;
		memset(a->data, 0, CELL); /* the file may be shorter */
		if (pread(fd, a->data, CELL, (off_t)k * CELL) < 0)
			refused("read of a cell");
		load(k, 1, &c);
		judge(k, &c, a->data, how);
	}
	if (!mine && fd >= 0 && close(fd) != 0)
		refused("close of cells that were read");
	unlock(s);
}

/* Cells that are cut off, or one that becomes a hole. */
static void cut_cells(struct actor *a)
{
	int punch = chance(a, 3) > 0, first = chance(a, 4) ? CELLS - 1 - chance(a, 40) : chance(a, CELLS), n = punch ? 1 : CELLS - first;
	struct cell c[CELLS];

	lock_cells(first, n, F_WRLCK);
	load(first, n, c);
	for (int i = 0; i < n; i++)
		c[i].zero = 1;
	store(first, n, c);
	int failed = open_cells() != 0;
	if (!failed && punch)
		failed = fallocate(cells, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first * CELL, CELL) != 0 && refused("punch of a cell");
	else if (!failed)
		failed = ftruncate(cells, (off_t)first * CELL) != 0 && refused("truncation of cells");
	for (int i = 0; i < n && !failed; i++)
		c[i] = (struct cell){ .low = 1, .next = c[i].next };
	store(first, n, c);
	lock_cells(first, n, F_UNLCK);
}

static void acknowledge(void)
{
	char line[64];

	for (; record_synced < record_number; record_synced++) {
		int n = snprintf(line, sizeof line, "%u %08x %08x\n", round_number, record_id, record_synced);
		if (write(synced, line, n) != n)
			die("synced");
	}
}

/* A record is its header and bytes that follow from that: see shared.go. */
static void append_record(struct actor *a)
{
	char name[32];
	size_t n = 1 + chance(a, chance(a, 8) ? 300 : RECORD);
	unsigned char *p = a->data;

	sprintf(name, "log.%u", round_number);
	if (log_file < 0 && (log_file = open(shared_path(name), O_WRONLY | O_CREAT | O_APPEND, 0600)) < 0) {
		refused("open of the log");
		return;
	}
	int h = sprintf((char *)p, "<%08x %08x %08zx>", record_id, record_number, n);
	for (size_t i = 0; i < n; i++)
		p[h + i] = byte_of(record_id + record_number, i);
	if (write(log_file, p, h + n) != (ssize_t)(h + n)) {
		record_id++; /* it may be there, and is not acknowledged */
		record_number = record_synced = 0;
		refused("append to the log");
		return;
	}
	record_number++;
	if (chance(a, 3) == 0 && (fsync(log_file) == 0 || refused("sync of the log") == 0))
		acknowledge();
	if (chance(a, 6) == 0) {
		int fd = log_file;
		log_file = -1;
		if (close(fd) == 0 || refused("close of the log") == 0)
			acknowledge();
	}
}

static void *share(void *arg)
{
	struct actor *a = arg;
	char name[32];

	if (mkdir(shared_path(""), 0700) != 0 && errno != EEXIST)
		refused("mkdir of what is shared");
	for (unsigned i = 1; i < 5; i++) {
		sprintf(name, "log.%u", round_number - i);
		if (unlink(shared_path(name)) != 0 && errno != ENOENT)
			refused("removal of an old log");
	}
	while (!stopped()) {
		uint64_t c = chance(a, 100);
		if (c < 40)
			write_cells(a);
		else if (c < 65)
			read_cells(a);
		else if (c < 70)
			cut_cells(a);
		else if (c < 97)
			append_record(a);
		else
			close_cells();
	}
	close_cells();
	if (log_file >= 0 && (close(log_file) == 0 || refused("close of the log") == 0))
		acknowledge();
	return NULL;
}

static void set_up_shared(uint64_t seed)
{
	shared = getenv("SOAK_SHARED");
	if (shared == NULL)
		return;
	common = (struct actor){ .owner = SHARED, .journal = -1, .random = mix(seed ^ mix((uint64_t)getpid() << 16 | 0xffff)), .data = malloc(CELLS * CELL) };
	if (common.data == NULL)
		die("memory");
	cells_state = state_file("cells", O_RDWR);
	synced = state_file("synced", O_WRONLY | O_APPEND);
	record_id = chance(&common, 1u << 31);
}
