/*
 * The sockets baseline, a ceiling: it sends the payload and a small acknowledgement over plain
 * TCP, with as little other work as possible. The rank's end:
 *
 * write   sends header and payload by one sendmsg; waits for 16 bytes read    sends the header;
 * waits for the payload
 *
 * The other end has one thread for each connection. It receives into memory as large as a
 * namespace, at an offset that wraps around at the end, so that the memory is as cold as that
 * of a namespace. It also sends from there. Both ends poll for data for a while before they
 * sleep, unless there are more threads than cores.
 */
#include "rank.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct header {
	uint64_t length;
	uint64_t what; /* one of the following constants */
};

enum { SEND = 1, FETCH = 2, ACKNOWLEDGE = 3 };

/* spins is the number of polls before a thread sleeps. */
static int spins;

/* tune sets the same socket options as the initiator and the target. */
static void tune(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* receive receives all n bytes. It returns false at the end of the stream, or after an error. */
static bool receive(int fd, void *data, size_t n)
{
	char *at = data;

	for (int turn = 0; n > 0;) {
		ssize_t got = recv(fd, at, n, turn < spins ? MSG_DONTWAIT : 0);

		if (got == 0)
			return false;
		if (got < 0 && errno != EAGAIN && errno != EINTR)
			return false;
		if (got < 0) {
			turn++;
			continue;
		}
		at += got;
		n -= (size_t)got;
		turn = 0;
	}
	return true;
}

static bool transmit(int fd, struct iovec *v, int count)
{
	while (count > 0) {
		struct msghdr m = { .msg_iov = v, .msg_iovlen = (size_t)count };
		ssize_t done = sendmsg(fd, &m, MSG_NOSIGNAL);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return false;
		for (; count > 0 && (size_t)done >= v->iov_len; v++, count--)
			done -= (ssize_t)v->iov_len;
		if (count > 0) {
			v->iov_base = (char *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
	return true;
}

/*
 * open_socket connects once. Later checkpoints use the same connection, as in a queue. The path
 * is tcp:HOST:PORT, followed by ":spin" to poll before sleeping.
 */
static int open_socket(const char *path, bool writing)
{
	static int fd = -1;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET }, *list;
	char host[256], port[16], mode[16] = "";

	(void)writing;
	if (fd >= 0)
		return fd;
	if (sscanf(path, "tcp:%255[^:]:%15[0-9]:%15s", host, port, mode) < 2) {
		errno = EINVAL;
		return -1;
	}
	spins = strcmp(mode, "spin") == 0 ? 2000 : 0;
	if (getaddrinfo(host, port, &hints, &list) != 0) {
		errno = EHOSTUNREACH;
		return -1;
	}
	fd = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		tune(fd);
	if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) != 0) {
		close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	return fd;
}

static ssize_t write_socket(int fd, const void *data, size_t n)
{
	struct header h = { n, SEND };
	struct iovec v[] = { { &h, sizeof h }, { (void *)(uintptr_t)data, n } };

	if (!transmit(fd, v, 2) || !receive(fd, &h, sizeof h))
		return -1;
	return (ssize_t)h.length;
}

static ssize_t read_socket(int fd, void *data, size_t n)
{
	struct header h = { n, FETCH };
	struct iovec v = { &h, sizeof h };

	return transmit(fd, &v, 1) && receive(fd, data, n) ? (ssize_t)n : -1;
}

static int nothing(int fd)
{
	(void)fd;
	return 0;
}

const struct medium sockets = { open_socket, write_socket, read_socket, nothing, nothing };

/* A service is one connection of the other end, with its part of the memory. */
struct service {
	int fd;
	char *memory;
	uint64_t size, next;
};

static char *place(struct service *s, uint64_t n)
{
	if (n > s->size)
		return NULL;
	if (s->next + n > s->size)
		s->next = 0;
	s->next += n;
	return s->memory + s->next - n;
}

static void *serve_connection(void *argument)
{
	struct service *s = argument;
	struct header h;

	while (receive(s->fd, &h, sizeof h)) {
		char *at = place(s, h.length);
		struct iovec v = { &h, sizeof h };

		if (!at)
			break;
		if (h.what == SEND) {
			if (!receive(s->fd, at, h.length))
				break;
			h.what = ACKNOWLEDGE;
		} else {
			v = (struct iovec){ at, h.length };
		}
		if (!transmit(s->fd, &v, 1))
			break;
	}
	close(s->fd);
	free(s);
	return NULL;
}

struct listener {
	int fd;
	char *memory;
	uint64_t size;
	int connections; /* number of connections with separate parts of the memory; further ones share these parts */
};

static void *accept_all(void *argument)
{
	struct listener *l = argument;
	uint64_t part = l->size / (uint64_t)l->connections;

	for (int i = 0;; i++) {
		pthread_t thread;
		struct service *s = calloc(1, sizeof *s);

		if (!s)
			return NULL;
		s->fd = accept(l->fd, NULL, NULL);
		if (s->fd < 0)
			return NULL;
		tune(s->fd);
		s->memory = l->memory + part * (uint64_t)(i % l->connections);
		s->size = part;
		if (pthread_create(&thread, NULL, serve_connection, s) != 0)
			return NULL;
		pthread_detach(thread);
	}
}

int serve_sockets(uint64_t size, int connections)
{
	static struct listener l;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof a;
	pthread_t thread;
	char c;

	l.size = size;
	l.connections = connections > 0 ? connections : 1;
	l.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	l.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l.memory == MAP_FAILED || l.fd < 0 || bind(l.fd, (struct sockaddr *)&a, length) != 0 ||
		listen(l.fd, 128) != 0 || getsockname(l.fd, (struct sockaddr *)&a, &length) != 0 ||
		pthread_create(&thread, NULL, accept_all, &l) != 0) {
		perror("nvmecr-bench-rank: sockets baseline");
		return 1;
	}
	spins = getenv("NVMECR_BENCH_SPIN") ? 2000 : 0;
	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		continue;
	return 0;
}
