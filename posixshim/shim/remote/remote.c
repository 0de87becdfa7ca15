/* Calls that another process of the rank makes for this one.
 *
 * A process that is a forked child, that was given descriptors of the mount by
 * the one that executed it, or that found the partition in use, sends its calls
 * to the process that has the files: its server. There is no Go in this: a
 * message and an answer over a unix socket, whose other end is
 * posixshim/server.go. A connection makes one call at a time.
 *
 * A handle of another process has that one's place in the table of servers in
 * bits that the runtime does not use. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "remote.h"
#include "nv.h"

/* A process that serves this one. */
struct server {
	_Atomic uint64_t number; /* 0: none here */
	pthread_mutex_t lock;    /* of the connection */
	int connection;          /* -1: none */
	uid_t user;              /* of the process that made it */
	_Atomic bool told;       /* the user knows that it has ended */
};

NV_LARGE struct server nv_servers[NV_SERVERS];
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

/* nv_add_server returns the place of the process of that number, 0 if there is
 * no memory. The thread must not be inside. */
int nv_add_server(uint64_t number)
{
	int i;

	nv_hold();
	pthread_mutex_lock(&adding);
	for (i = 1; i < NV_SERVERS && nv_servers[i].number != 0 && nv_servers[i].number != number; i++)
		;
	if (i < NV_SERVERS && nv_servers[i].number == 0) {
		pthread_mutex_init(&nv_servers[i].lock, NULL);
		nv_servers[i].connection = -1;
		atomic_store(&nv_servers[i].number, number);
	}
	pthread_mutex_unlock(&adding);
	nv_let_go();
	return i < NV_SERVERS ? i : 0;
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
		nv_servers[i].connection = -1; /* closed with the other descriptors of ours */
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
	m->in_count = nv_nowhere(iov) ? 0 : count;
}

void nv_put_reply_buffer(struct nv_message *m, void *buf, size_t n)
{
	m->one = (struct iovec){buf, n};
	nv_put_reply_buffers(m, &m->one, 1);
}

/* nv_put_exchange is for data that goes and comes back changed. */
void nv_put_exchange(struct nv_message *m, void *both, size_t n)
{
	nv_put_reply_buffer(m, both, n);
	nv_put_gather(m, &m->one, 1);
}

/* total is how much of iov goes with one message, behind what is done. */
static size_t total(const struct iovec *iov, int count, size_t done)
{
	size_t n = 0;

	for (int i = 0; i < count && n < done + NV_FAR_MOST; i++)
		n += iov[i].iov_len < NV_TRANSFER ? iov[i].iov_len : NV_TRANSFER;
	n = n < NV_TRANSFER ? n : NV_TRANSFER;
	n = n > done ? n - done : 0;
	return n < NV_FAR_MOST ? n : NV_FAR_MOST;
}

void nv_put_reply_buffers(struct nv_message *m, const struct iovec *iov, int count)
{
	m->out = iov;
	m->out_count = nv_nowhere(iov) ? 0 : count;
	m->capacity = m->numbers;
	nv_put_number(m, (int64_t)total(iov, m->out_count, 0));
}

void nv_put_offset(struct nv_message *m, int64_t off)
{
	m->offset = m->numbers;
	nv_put_number(m, off);
}

/* ---- the other end ---- */

static bool peer_alive(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof peer;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (kill(peer.pid, 0) == 0 || errno == EPERM);
}

/* handed_over says whether another process listens now where the peer of fd did: then it
 * has the connection, too. */
static bool handed_over(int fd)
{
	struct sockaddr_un name;
	socklen_t length = sizeof name;
	int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (other < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM; /* that cannot be said yet */
	bool is = getpeername(fd, (struct sockaddr *)&name, &length) == 0 &&
		  connect(other, (struct sockaddr *)&name, length) == 0 && peer_alive(other);

	REAL(close)(other);
	return is;
}

/* again says that a system call is to be made again: a signal came, or it has waited for some time and there is still
 * somebody to wait for. A child of the server may have a copy of the other end, so that its end does not show here. */
static bool again(int fd)
{
	return errno == EINTR || (errno == EAGAIN && (peer_alive(fd) || handed_over(fd)));
}

/* part_of is what of one buffer belongs to the n bytes behind the first skip ones, which it counts. */
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

/* What is sent, in as few system calls as can be. */
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

		if (n < 0 && !again(s->fd))
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

/* send_request sends m, of whose data so much is done. */
static bool send_request(int fd, const struct nv_message *m, size_t done)
{
	struct nv_request request = {.protocol = nv_protocol, .call = m->call};
	struct sending s = {.fd = fd};
	uint32_t length[4];
	size_t data = total(m->in, m->in_count, done);

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
	while (got < 0 && again(fd));
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

/* receive_head also takes the descriptor that may come along. */
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

/* receive_answer receives what a call has come to, and what it has read behind what is done. */
static bool receive_answer(int fd, struct nv_message *m, size_t done, struct nv_reply *reply)
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

/* connect_to connects to a server, which must be of this user. */
static int connect_to(struct server *s)
{
	static const struct timeval look = {.tv_usec = 500 * 1000};
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, NV_SOCKET "%016llx", (unsigned long long)s->number);
	struct ucred peer;
	socklen_t length = sizeof peer;
	int result, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	do
		result = connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n));
	while (result != 0 && errno == EINTR);
	if (result != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &look, sizeof look) != 0 || peer.uid != geteuid()) {
		int why = result != 0 ? errno : EACCES;

		REAL(close)(fd);
		return nv_error(why);
	}
	nv_arm();
	s->user = peer.uid;
	return nv_own_descriptor(fd, 1);
}

static void disconnect(struct server *s)
{
	nv_own_descriptor(s->connection, 0);
	REAL(close)(s->connection);
	s->connection = -1;
}

/* gone tells once that a server has ended. */
static int64_t gone(struct server *s, int error)
{
	errno = error;
	if (!atomic_exchange(&s->told, true))
		nv_complain("process %d cannot reach the process that has its open files under %s any more (%m): they fail",
			    (int)getpid(), nv_mount);
	return -EIO;
}

/* no_connection is what a call comes to that could not be sent: this process may
 * have no descriptor for it, or no memory, or the server may have ended. */
static int64_t no_connection(struct server *s, const struct nv_message *m, int error)
{
	if (error == EACCES && !atomic_exchange(&s->told, true))
		nv_complain("process %d runs as user %u, and cannot use files under %s that a process of another user has: EACCES",
			    (int)getpid(), (unsigned)geteuid(), nv_mount);
	if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS || error == EACCES)
		return -error;
	return m->outside != NULL ? NV_GONE : gone(s, error);
}

/* broken ends a connection in the middle of a call, with all that belongs to it here, and says what the call comes to. */
static int64_t broken(struct server *s, const struct nv_message *m, int error)
{
	bool unread = error == ECONNRESET || error == EPIPE; /* it is a reset where the other end has not read the request */

	if (nv_remote_descriptor >= 0)
		REAL(close)(nv_remote_descriptor);
	disconnect(s);
	if (error == EFAULT) /* memory of the application: the server lives */
		return -EFAULT;
	return unread && m->outside != NULL ? NV_GONE : gone(s, error);
}

/* call makes a call, or the part of a transfer that follows what is done. */
static int64_t call(struct server *s, struct nv_message *m, size_t done)
{
	struct nv_reply reply;

	nv_remote_descriptor = -1;
	if (s->connection >= 0 && s->user != geteuid()) /* its rights are not this user's */
		disconnect(s);
	if (s->connection < 0)
		s->connection = connect_to(s);
	if (s->connection < 0)
		return no_connection(s, m, errno);
	bool sent = send_request(s->connection, m, done);
	int error = errno;

	/* A server that has no descriptor for the connection has answered already,
	 * and closed it with the request, or what there was of it, unread. */
	if (!sent && error != EPIPE && error != ECONNRESET)
		return broken(s, m, error);
	if (!receive_answer(s->connection, m, done, &reply))
		return broken(s, m, sent ? errno : error);
	if (reply.flags & NV_REPLY_LAST)
		disconnect(s);
	if (!(reply.flags & NV_REPLY_DESCRIPTOR))
		return reply.result;
	/* The kernel drops it where there is no number for it, and the server learns of that. */
	return nv_remote_descriptor < 0 ? -EMFILE : nv_remote(reply.result, m->server);
}

/* nv_remote_call makes a call in another process; the thread is inside. The result
 * is that of the runtime's function, a handle with the place of the process in
 * it; NV_GONE if that process has ended without having seen the call. A transfer
 * that is larger than a message may be is several calls. */
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
		part = total(iov, count, (size_t)done);
		if (reads && done > 0)
			m->number[m->capacity] = (int64_t)part;
		result = call(s, m, (size_t)done);
		if (result > 0)
			done += result;
		if (m->offset != 0 && m->number[m->offset] >= 0)
			m->number[m->offset] += NV_FAR_MOST;
	} while (result == NV_FAR_MOST && part == NV_FAR_MOST && total(iov, count, (size_t)done) > 0);
	pthread_mutex_unlock(&s->lock);
	return done > 0 ? done : result;
}

/* nv_enter_remote is called before a call to another process. */
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

/* nv_reach connects to the process that has h before a descriptor of it is
 * closed, which is asked about after that: one that ends answers only who is
 * connected when its last file is closed. What fails is seen then. */
void nv_reach(nv_handle h)
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
