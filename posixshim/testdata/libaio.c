/* Submits requests of libaio, as fio and DeepSpeed do. One list has requests for files of the mount, for other files, and invalid
 * ones. The program makes the same system calls as libaio. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define P(x) printf("%-60.60s %ld\n", #x, (long)(x))

static int (*submit)(aio_context_t, long, struct iocb **);

/* direct implements io_submit as libaio does. It is used if no preloaded library has that function. */
static int direct(aio_context_t context, long n, struct iocb **list)
{
	long done = syscall(SYS_io_submit, context, n, list);

	return done < 0 ? -5 : (int)done;
}

static struct iocb request(int fd, int opcode, void *buf, size_t n, off_t off)
{
	return (struct iocb){.aio_fildes = (uint32_t)fd, .aio_lio_opcode = (uint16_t)opcode, .aio_buf = (uintptr_t)buf,
			     .aio_nbytes = n, .aio_offset = off, .aio_data = (uint64_t)opcode};
}

/* collect prints the results of the requests, in the order of the list. */
static void collect(aio_context_t context, struct iocb **list, long n)
{
	struct io_event events[16];

	P(syscall(SYS_io_getevents, context, n, 16, events, NULL));
	for (long i = 0; i < n; i++)
		for (long k = 0; k < n; k++)
			if (events[k].obj == (uintptr_t)list[i])
				printf("request %ld: opcode %ld, result %ld\n", i, (long)events[k].data, (long)events[k].res);
}

int main(int argc, char **argv)
{
	char a[] = "asynchronous", b[32] = "", c[8] = "", d[8] = "";
	struct iovec parts[] = {{c, 4}, {d, 4}};
	aio_context_t context = 0;
	uint64_t woken = 0;
	int fd, other, event = eventfd(0, 0);

	if (argc != 2 || chdir(argv[1]) != 0)
		return 1;
	submit = (int (*)(aio_context_t, long, struct iocb **))(uintptr_t)dlsym(RTLD_DEFAULT, "io_submit");
	if (submit == NULL)
		submit = direct;
	P(syscall(SYS_io_setup, 16, &context));
	fd = open("file", O_RDWR | O_CREAT, 0600);
	other = open("/tmp", O_TMPFILE | O_RDWR, 0600);

	struct iocb write = request(fd, IOCB_CMD_PWRITE, a, 12, 0), elsewhere = request(other, IOCB_CMD_PWRITE, a, 5, 0);
	struct iocb read = request(fd, IOCB_CMD_PREAD, b, 32, 2), vector = request(fd, IOCB_CMD_PREADV, parts, 2, 1);
	struct iocb sync = request(fd, IOCB_CMD_FSYNC, NULL, 0, 0), wrong = request(-1, IOCB_CMD_PWRITE, a, 12, 0);
	struct iocb past = request(fd, IOCB_CMD_PREAD, b, 32, 100);
	struct iocb *first[] = {&write, &elsewhere}, *second[] = {&read, &elsewhere, &vector, &sync, &past, &wrong, &write};

	write.aio_flags = IOCB_FLAG_RESFD;
	write.aio_resfd = (uint32_t)event;
	P(submit(context, 2, first));
	collect(context, first, 2);
	P(syscall(SYS_read, event, &woken, sizeof woken));
	P(woken);
	P(write.aio_fildes == (uint32_t)fd && write.aio_lio_opcode == IOCB_CMD_PWRITE && write.aio_nbytes == 12);
	P(submit(context, 7, second));
	collect(context, second, 5);
	printf("%s %.4s %.4s\n", b, c, d);
	P(submit(context, 1, second + 5) < 0);
	P(submit(context, 0, second));
	P(close(fd));
	P(submit(context, 1, first) < 0);
	P(syscall(SYS_io_destroy, context));
	return 0;
}
