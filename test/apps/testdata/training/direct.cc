// What zero_sim.py needs of native code: the calls of torch.save by path, and of DeepSpeed's FastFileWriter, which submits requests by libaio.
// libaio has no header here, as its users may not have its development package.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef LIBAIO
extern "C" int io_setup(int, aio_context_t *);
extern "C" int io_submit(aio_context_t, long, struct iocb **);
extern "C" int io_getevents(aio_context_t, long, long, struct io_event *, struct timespec *);
extern "C" int io_destroy(aio_context_t);
#else
// The system calls of libaio, with its errors.
static long of(long result) { return result < 0 ? -errno : result; }
static long io_setup(int n, aio_context_t *context) { return of(syscall(SYS_io_setup, n, context)); }
static long io_submit(aio_context_t context, long n, struct iocb **list) { return of(syscall(SYS_io_submit, context, n, list)); }
static long io_getevents(aio_context_t context, long least, long n, struct io_event *events, struct timespec *timeout)
{
	return of(syscall(SYS_io_getevents, context, least, n, events, timeout));
}
static long io_destroy(aio_context_t context) { return of(syscall(SYS_io_destroy, context)); }
#endif

enum { DEPTH = 8 };

// save writes a file by a C++ stream, as torch.save to a path does. It returns 0 or -1.
extern "C" int save(const char *path, const char *header, long h, const char *body, long b, const char *tail, long t)
{
	std::ofstream f(path, std::ios::binary | std::ios::trunc);

	f.write(header, h);
	f.write(body, b);
	f.write(tail, t);
	f.close();
	return f ? 0 : -1;
}

// transfer reads or writes length bytes at an offset, in requests of a block, of which DEPTH are queued. It returns 0, or an error number.
extern "C" int transfer(int fd, int write, char *buf, long length, long offset, long block)
{
	aio_context_t context = 0;
	struct iocb requests[DEPTH], *list[DEPTH];
	struct io_event events[DEPTH];
	int failed = 0;

	if (long error = io_setup(DEPTH, &context); error < 0)
		return (int)-error;
	while (length > 0 && failed == 0) {
		long n = 0, got = 0, sent = 0, next = 0;

		memset(requests, 0, sizeof requests);
		for (; n < DEPTH && next < length; n++, next += block) {
			struct iocb *r = &requests[n];

			r->aio_lio_opcode = write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
			r->aio_fildes = (uint32_t)fd;
			r->aio_buf = (uint64_t)(uintptr_t)(buf + next);
			r->aio_nbytes = (uint64_t)(length - next < block ? length - next : block);
			r->aio_offset = offset + next;
			r->aio_data = r->aio_nbytes;
			list[n] = r;
		}
		while (sent < n && failed == 0) {
			long done = io_submit(context, n - sent, list + sent);

			if (done < 0)
				failed = (int)-done;
			else
				sent += done;
		}
		while (got < sent) {
			long done = io_getevents(context, 1, sent - got, events, nullptr);

			if (done < 0)
				break;
			for (long i = 0; i < done; i++)
				if (events[i].res != (int64_t)events[i].data && failed == 0)
					failed = events[i].res < 0 ? (int)-events[i].res : EIO;
			got += done;
		}
		buf += next, offset += next, length -= next;
	}
	io_destroy(context);
	return failed;
}
