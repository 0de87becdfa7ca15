/* Uses io_uring on files of the directory argv[1], with system calls by number, as fio does. argv[2] opens a file before it sets
 * io_uring up, and one after that. */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static struct io_uring_params params;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static void set_up(void)
{
	ring = (int)syscall(SYS_io_uring_setup, 4, &params);
	if (ring < 0)
		die("io_uring_setup");
	sq = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		  IORING_OFF_CQ_RING);
	sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
		die("mmap");
}

/* request executes one request and returns its result. */
static int request(int op, int fd, void *buf, unsigned n, off_t off)
{
	_Atomic unsigned *tail = (void *)(sq + params.sq_off.tail), *head = (void *)(cq + params.cq_off.head);
	unsigned mask = *(unsigned *)(sq + params.sq_off.ring_mask), at = *tail & mask;
	struct io_uring_cqe *cqes = (void *)(cq + params.cq_off.cqes);

	memset(&sqes[at], 0, sizeof *sqes);
	sqes[at].opcode = (unsigned char)op;
	sqes[at].fd = fd;
	sqes[at].addr = (unsigned long)buf;
	sqes[at].len = n;
	sqes[at].off = (unsigned long)off;
	((unsigned *)(sq + params.sq_off.array))[at] = at;
	atomic_fetch_add(tail, 1);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		die("io_uring_enter");
	int result = cqes[*head & *(unsigned *)(cq + params.cq_off.ring_mask)].res;

	atomic_fetch_add(head, 1);
	return result;
}

static void say(const char *what, int result)
{
	if (result < 0)
		printf("%s: %s\n", what, strerror(-result));
	else
		printf("%s: %d\n", what, result);
}

static int open_file(const char *dir, const char *name, int flags)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, flags, 0640);

	if (fd < 0)
		die(path + strlen(dir));
	return fd;
}

/* transfer writes to a file and reads it again. */
static void transfer(int fd)
{
	static char text[100000], copy[100000];
	struct stat st;

	memset(text, 'x', sizeof text);
	say("write", request(IORING_OP_WRITE, fd, text, sizeof text, 10));
	say("fsync", request(IORING_OP_FSYNC, fd, NULL, 0, 0));
	say("read", request(IORING_OP_READ, fd, copy, sizeof copy, 10));
	printf("same: %d\n", memcmp(text, copy, sizeof text) == 0);
	printf("pwrite: %d\n", (int)pwrite(fd, "0123456789", 10, 0));
	int result = fstat(fd, &st);

	printf("fstat: %d, size %d\n", result, result == 0 ? (int)st.st_size : -1);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	int before = open_file(argv[1], "before", O_RDWR | O_CREAT);

	set_up();
	int after = open_file(argv[1], "after", O_RDWR | O_CREAT);

	printf("opened after:\n");
	transfer(after);
	printf("opened before:\n");
	transfer(before);
	return close(after) + close(before);
}
