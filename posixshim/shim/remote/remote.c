/* Calls that a server makes for this process.
 *
 * A forked child, a program that has inherited descriptors that are ours, and a process that has found the partition in use send
 * their calls to the process that has the files: their server. A call is a request and a reply over a unix socket
 * (posixshim/message.go, posixshim/server.go). It needs no runtime in this process.
 *
 * The table of servers only grows. The lock adding guards that. The lock of a server guards its connection, which makes one call
 * at a time: other threads wait. Threads that have a lock block signals. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "remote.h"
#include "nv.h"

/* A server of this process. */
struct server {
	_Atomic uint64_t number; /* its address; 0: this entry is free */
	pthread_mutex_t lock;    /* guards connection and user */
	int connection;          /* -1: none */
	uid_t user;              /* the effective user of this process when it connected */
	_Atomic bool reported;   /* the user has been told that the server cannot be reached */
};

NV_LARGE struct server nv_servers[NV_SERVERS];
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

/* nv_add_server returns the index of the server of that number, which it adds to the table; 0: the table is full. */
int nv_add_server(uint64_t number)
{
	int i;

	nv_begin_critical();
	pthread_mutex_lock(&adding);
	for (i = 1; i < NV_SERVERS && nv_servers[i].number != 0 && nv_servers[i].number != number; i++)
		;
	if (i < NV_SERVERS && nv_servers[i].number == 0) {
		pthread_mutex_init(&nv_servers[i].lock, NULL);
		nv_servers[i].connection = -1;
		atomic_store(&nv_servers[i].number, number);
	}
	pthread_mutex_unlock(&adding);
	nv_end_critical();
	return i < NV_SERVERS ? i : 0;
}

/* nv_host_server returns nvmecr serve, which redirects calls to the server for the rank of this process; 0: it is not known. */
int nv_host_server(void)
{
	return nv_host == 0 ? 0 : nv_add_server(nv_host);
}

bool nv_served(void)
{
	return nv_servers[1].number != 0;
}

/* nv_drop_connections is called in a forked child, which makes its own. */
void nv_drop_connections(void)
{
	static const pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;

	adding = free_lock;
	for (int i = 1; i < NV_SERVERS && nv_servers[i].number != 0; i++) {
		nv_servers[i].lock = free_lock;
		nv_servers[i].connection = -1; /* nv_drop_descriptors closes it */
	}
}

/* ---- messages ---- */

void nv_put_number(struct nv_message *m, int64_t n)
{
	m->number[m->numbers++] = n;
}

void nv_put_handle(struct nv_message *m, nv_handle h)
{
	nv_put_number(m, nv_local(h));
}

void nv_put_string(struct nv_message *m, const char *s)
{
	m->string[m->strings++] = (struct iovec){(void *)s, strlen(s)};
}

void nv_put_path_at(struct nv_message *m, nv_handle dir, const char *path, char *outside)
{
	nv_put_handle(m, dir);
	nv_put_string(m, path);
	m->outside = outside;
}

void nv_put_data(struct nv_message *m, const void *data, size_t n)
{
	m->one = (struct iovec){(void *)data, n};
	nv_put_gather(m, &m->one, 1);
}

void nv_put_gather(struct nv_message *m, const struct iovec *iov, int count)
{
	m->data = true;
	m->in = iov;
	m->in_count = nv_near_null(iov) ? 0 : count;
}

void nv_put_reply_buffer(struct nv_message *m, void *buf, size_t n)
{
	m->one = (struct iovec){buf, n};
	nv_put_reply_buffers(m, &m->one, 1);
}

/* nv_put_exchange is for data that the server changes and returns. */
void nv_put_exchange(struct nv_message *m, void *both, size_t n)
{
	nv_put_reply_buffer(m, both, n);
	nv_put_gather(m, &m->one, 1);
}

/* message_data returns how many bytes of iov, after the first done ones, are in the next message. */
static size_t message_data(const struct iovec *iov, int count, size_t done)
{
	size_t n = 0;

	for (int i = 0; i < count && n < done + NV_MAX_MESSAGE_DATA; i++)
		n += iov[i].iov_len < NV_MAX_RW_COUNT ? iov[i].iov_len : NV_MAX_RW_COUNT;
	n = n < NV_MAX_RW_COUNT ? n : NV_MAX_RW_COUNT;
	n = n > done ? n - done : 0;
	return n < NV_MAX_MESSAGE_DATA ? n : NV_MAX_MESSAGE_DATA;
}

void nv_put_reply_buffers(struct nv_message *m, const struct iovec *iov, int count)
{
	m->out = iov;
	m->out_count = nv_near_null(iov) ? 0 : count;
	m->capacity = m->numbers;
	nv_put_number(m, (int64_t)message_data(iov, m->out_count, 0));
}

void nv_put_offset(struct nv_message *m, int64_t off)
{
	m->offset = m->numbers;
	nv_put_number(m, off);
}

/* ---- the server's end ---- */

static bool peer_alive(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof peer;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (kill(peer.pid, 0) == 0 || errno == EPERM);
}

/* handed_over says whether another process listens at the address of the peer of fd. Then that process has taken over the
 * connection. */
static bool handed_over(int fd)
{
	struct sockaddr_un name;
	socklen_t length = sizeof name;
	int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (other < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM; /* ask again later */
	bool is = getpeername(fd, (struct sockaddr *)&name, &length) == 0 &&
		  connect(other, (struct sockaddr *)&name, length) == 0 && peer_alive(other);

	REAL(close)(other);
	return is;
}

/* retry says whether a system call on a connection is to be repeated: it was interrupted, or it has timed out and the server
 * still runs. The time-out is needed because a child of the server may have a copy of the server's end: the connection then stays
 * open when the server ends. */
static bool retry(int fd)
{
	return errno == EINTR || (errno == EAGAIN && (peer_alive(fd) || handed_over(fd)));
}

/* part_of returns the part of a buffer that is in the *n bytes after the first *skip bytes of a list of buffers. It reduces both by
 * the bytes of this buffer. */
static struct iovec part_of(struct iovec whole, size_t *skip, size_t *n)
{
	size_t before = whole.iov_len < *skip ? whole.iov_len : *skip, rest = whole.iov_len - before;
	struct iovec part = {(char *)whole.iov_base + before, rest < *n ? rest : *n};

	*skip -= before;
	*n -= part.iov_len;
	return part;
}

/* ---- sending ---- */

#define PARTS 16

/* Data to be sent, gathered so that few system calls are needed. */
struct sending {
	int fd;
	unsigned count;
	struct iovec part[PARTS];
};

static bool send_parts(struct sending *s)
{
	struct iovec *part = s->part, *end = part + s->count;

	while (part < end) {
		struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)(end - part)};
		ssize_t n = sendmsg(s->fd, &message, MSG_NOSIGNAL);

		if (n < 0 && !retry(s->fd))
			return false;
		for (size_t sent = n < 0 ? 0 : (size_t)n, all = SIZE_MAX; part < end; part++) {
			*part = part_of(*part, &sent, &all);
			if (part->iov_len > 0)
				break;
		}
	}
	s->count = 0;
	return true;
}

static bool put_part(struct sending *s, const void *from, size_t n)
{
	if (n > 0)
		s->part[s->count++] = (struct iovec){(void *)from, n};
	return s->count < PARTS || send_parts(s);
}

/* send_request sends m with the data after the first done bytes. */
static bool send_request(int fd, const struct nv_message *m, size_t done)
{
	struct nv_request request = {.protocol = nv_protocol, .call = m->call};
	struct sending s = {.fd = fd};
	uint32_t length[4];
	size_t data = message_data(m->in, m->in_count, done);

	memcpy(request.numbers, m->number, sizeof request.numbers);
	for (unsigned i = 0; i < m->strings; i++)
		request.length += 4 + (length[i] = (uint32_t)m->string[i].iov_len);
	if (m->data)
		request.length += 4 + (length[3] = (uint32_t)data);
	bool sent = put_part(&s, &request, sizeof request);

	for (unsigned i = 0; i < m->strings && sent; i++)
		sent = put_part(&s, &length[i], 4) && put_part(&s, m->string[i].iov_base, length[i]);
	if (m->data && sent)
		sent = put_part(&s, &length[3], 4);
	for (int i = 0; data > 0 && sent; i++) {
		struct iovec part = part_of(m->in[i], &done, &data);

		sent = put_part(&s, part.iov_base, part.iov_len);
	}
	return sent && send_parts(&s);
}

/* ---- receiving ---- */

static ssize_t receive(int fd, struct msghdr *message)
{
	ssize_t got;

	do
		got = recvmsg(fd, message, MSG_CMSG_CLOEXEC);
	while (got < 0 && retry(fd));
	return got == 0 ? nv_error(ENOTCONN) : got;
}

static bool receive_all(int fd, void *to, size_t n)
{
	for (char *p = to; n > 0;) {
		struct iovec iov = {p, n};
		ssize_t got = receive(fd, &(struct msghdr){.msg_iov = &iov, .msg_iovlen = 1});

		if (got < 0)
			return false;
		p += got;
		n -= (size_t)got;
	}
	return true;
}

/* receive_head receives the head of a reply, and the descriptor that may be sent along. */
static bool receive_head(int fd, struct nv_reply *reply)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {reply, sizeof *reply};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t got = receive(fd, &message);

	if (got < 0)
		return false;
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&nv_remote_descriptor, CMSG_DATA(c), sizeof(int));
	return receive_all(fd, (char *)reply + got, sizeof *reply - (size_t)got);
}

/* receive_reply receives a reply. Its data goes to the buffers of m after their first done bytes. */
static bool receive_reply(int fd, struct nv_message *m, size_t done, struct nv_reply *reply)
{
	if (!receive_head(fd, reply))
		return false;
	size_t left = reply->length;

	errno = EPROTO;
	if (reply->result == NV_OUTSIDE || reply->result == NV_REDIRECT) {
		if (m->outside == NULL || left >= NV_PATH)
			return false;
		m->outside[left] = '\0';
		return receive_all(fd, m->outside, left);
	}
	for (int i = 0; i < m->out_count && left > 0; i++) {
		struct iovec part = part_of(m->out[i], &done, &left);

		if (!receive_all(fd, part.iov_base, part.iov_len))
			return false;
	}
	errno = EPROTO;
	return left == 0;
}

/* ---- the connection ---- */

/* connect_to connects to a server, which must be a process of this user. nvmecr serve is first sent the environment of this process, by
 * which it finds the rank. */
static int connect_to(struct server *s)
{
	static const struct timeval timeout = {.tv_usec = 500 * 1000}; /* see retry */
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct nv_message hello = {.call = NV_HELLO, .data = true, .in = &hello.one, .in_count = 1};
	int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, NV_SOCKET "%016llx", (unsigned long long)s->number);
	struct ucred peer = {.uid = geteuid()};
	socklen_t length = sizeof peer;
	int result, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	hello.one.iov_base = (void *)nv_environment(&hello.one.iov_len);
	do
		result = connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n));
	while (result != 0 && errno == EINTR);
	if (result != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0 || peer.uid != geteuid() ||
	    (s == &nv_servers[nv_host_server()] && !send_request(fd, &hello, 0))) {
		int why = peer.uid != geteuid() ? EACCES : errno;

		REAL(close)(fd);
		return nv_error(why);
	}
	nv_detect_fork();
	s->user = peer.uid;
	return nv_own_descriptor(fd, NV_OWN_OPENED);
}

static void disconnect(struct server *s)
{
	nv_own_descriptor(s->connection, NV_OWN_CLOSING);
	REAL(close)(s->connection);
	s->connection = -1;
}

/* unreachable reports, once for each server, that it cannot be reached any more. */
static int64_t unreachable(struct server *s, int error)
{
	errno = error;
	if (!atomic_exchange(&s->reported, true))
		nv_complain("process %d cannot reach the process that has its open files under %s any more (%m): they fail",
			    (int)getpid(), nv_mount);
	return -EIO;
}

/* no_connection returns the result of a call that could not be sent: this process has no descriptor or no memory for the
 * connection, or the server has ended. */
static int64_t no_connection(struct server *s, const struct nv_message *m, int error)
{
	if (error == EACCES && !atomic_exchange(&s->reported, true))
		nv_complain("process %d runs as user %u, and cannot use files under %s that a process of another user has: EACCES",
			    (int)getpid(), (unsigned)geteuid(), nv_mount);
	if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS || error == EACCES)
		return -error;
	return m->outside != NULL ? NV_GONE : unreachable(s, error);
}

/* broken closes a connection that has failed during a call, and returns the result of the call. */
static int64_t broken(struct server *s, const struct nv_message *m, int error)
{
	bool unread = error == ECONNRESET || error == EPIPE; /* the connection is reset if the server has not read the request */

	if (nv_remote_descriptor >= 0)
		REAL(close)(nv_remote_descriptor);
	disconnect(s);
	if (error == EFAULT) /* a bad buffer of the application; the server runs */
		return -EFAULT;
	return unread && m->outside != NULL ? NV_GONE : unreachable(s, error);
}

/* call makes a call, or the part of a transfer after the first done bytes. The caller has the server's lock. */
static int64_t call(struct server *s, struct nv_message *m, size_t done)
{
	struct nv_reply reply;

	nv_remote_descriptor = -1;
	if (s->connection >= 0 && s->user != geteuid()) /* the server has checked another user */
		disconnect(s);
	if (s->connection < 0)
		s->connection = connect_to(s);
	if (s->connection < 0)
		return no_connection(s, m, errno);
	bool sent = send_request(s->connection, m, done);
	int error = errno;

	/* A server that has no descriptor for the connection sends an error and closes the connection without reading the
	 * request. Sending may then fail, and the reply is there. */
	if (!sent && error != EPIPE && error != ECONNRESET)
		return broken(s, m, error);
	if (!receive_reply(s->connection, m, done, &reply))
		return broken(s, m, sent ? errno : error);
	if (reply.flags & NV_REPLY_LAST)
		disconnect(s);
	if (!(reply.flags & NV_REPLY_DESCRIPTOR))
		return reply.result;
	/* Without a free number the kernel has closed the descriptor. The server sees that, and closes the file. */
	return nv_remote_descriptor < 0 ? -EMFILE : nv_remote(reply.result, m->server);
}

/* nv_remote_call makes a call in a server. The caller is between nv_enter_remote and nv_leave. The result is that of the runtime's
 * function; a handle has the index of the server in it. NV_GONE: the server has ended and has not seen the call. A transfer that
 * is too large for a message becomes several calls. */
int64_t nv_remote_call(struct nv_message *m)
{
	struct server *s = &nv_servers[m->server];
	bool reads = m->out_count > 0;
	const struct iovec *iov = reads ? m->out : m->in;
	int count = reads ? m->out_count : m->in_count;
	int64_t result, done = 0;
	size_t part;

	pthread_mutex_lock(&s->lock);
	do {
		part = message_data(iov, count, (size_t)done);
		if (reads && done > 0)
			m->number[m->capacity] = (int64_t)part;
		result = call(s, m, (size_t)done);
		if (result > 0)
			done += result;
		if (m->offset != 0 && m->number[m->offset] >= 0)
			m->number[m->offset] += NV_MAX_MESSAGE_DATA;
	} while (result == NV_MAX_MESSAGE_DATA && part == NV_MAX_MESSAGE_DATA && message_data(iov, count, (size_t)done) > 0);
	pthread_mutex_unlock(&s->lock);
	return done > 0 ? done : result;
}

/* nv_enter_remote is nv_enter for a call that a server makes. */
bool nv_enter_remote(struct nv_visit *visit)
{
	visit->errno_before = errno;
	visit->state_before = nv_state;
	if (__builtin_expect(nv_must_not_enter(), 0))
		return false;
	nv_block_signals(&visit->mask_before);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &visit->cancel_before);
	nv_state = NV_INSIDE;
	return true;
}

/* nv_connect connects to the server of h, before a descriptor of h is closed. After that the server is asked for the result of
 * the close. A server that is ending answers only processes that were connected when its last file was closed. Errors show in
 * that call. */
void nv_connect(nv_handle h)
{
	struct nv_visit visit;

	if (h <= 0 || nv_server(h) == 0 || !nv_enter_remote(&visit))
		return;
	struct server *s = &nv_servers[nv_server(h)];

	if (pthread_mutex_trylock(&s->lock) == 0) { /* else another thread is connected */
		if (s->connection < 0)
			s->connection = connect_to(s);
		pthread_mutex_unlock(&s->lock);
	}
	nv_leave(&visit, 0);
}
