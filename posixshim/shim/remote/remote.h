/* Calls that a server makes for this process: remote.c. */
#ifndef NV_REMOTE_H
#define NV_REMOTE_H

#include "nv.h"

/* How the names of sockets begin, in the abstract name space. */
#define NV_SOCKET "nvmecr:"

/* The head of a request and of a reply: posixshim/message.go. */
struct nv_request {
	uint32_t protocol;
	uint32_t call;
	uint32_t length;
	uint32_t zero;
	int64_t numbers[6];
};

#define NV_HELLO 0u /* a call that is the first one to nvmecr serve: its data is the environment of this process */

struct nv_reply {
	int64_t result;
	uint32_t length;
	uint32_t flags;
};

#define NV_REPLY_DESCRIPTOR 1u /* a descriptor is sent along (SCM_RIGHTS), and result is a handle */
#define NV_REPLY_LAST 2u       /* the server closes the connection after this reply */

_Static_assert(sizeof(struct nv_request) == 64 && sizeof(struct nv_reply) == 16, "message.go");
_Static_assert(offsetof(struct nv_request, call) == 4 && offsetof(struct nv_request, length) == 8 &&
	       offsetof(struct nv_request, numbers) == 16, "message.go");
_Static_assert(offsetof(struct nv_reply, length) == 8 && offsetof(struct nv_reply, flags) == 12, "message.go");

/* The most bytes of data in one message, and the most that one read or write transfers, as in Linux. */
#define NV_MAX_MESSAGE_DATA (8u << 20)
#define NV_MAX_RW_COUNT 0x7ffff000u

/* A call that is sent to a server. It lives on the stack of the thread that makes the call. */
struct nv_message {
	int server;
	uint32_t call;           /* its line in calls.txt */
	unsigned numbers;        /* used entries of number */
	unsigned capacity;       /* the entry of number that is the capacity of out */
	unsigned offset;         /* the entry that is a file offset; 0: no entry is, since entry 0 is a handle */
	unsigned strings;        /* used entries of string */
	int64_t number[6];
	struct iovec string[3];
	bool data;               /* the request has data, perhaps of no bytes */
	const struct iovec *in;  /* the data of the request */
	const struct iovec *out; /* the buffers for the data of the reply */
	int in_count, out_count;
	struct iovec one;        /* in or out point to this where they are one buffer */
	char *outside;           /* NV_PATH bytes for the path or server in a reply; NULL: the call cannot be repeated elsewhere */
};

extern const uint32_t nv_protocol;

void nv_put_number(struct nv_message *m, int64_t n);
void nv_put_offset(struct nv_message *m, int64_t off);
void nv_put_handle(struct nv_message *m, nv_handle h);
void nv_put_string(struct nv_message *m, const char *s);
void nv_put_path_at(struct nv_message *m, nv_handle dir, const char *path, char *outside);
void nv_put_data(struct nv_message *m, const void *data, size_t n);
void nv_put_gather(struct nv_message *m, const struct iovec *iov, int count);
void nv_put_exchange(struct nv_message *m, void *both, size_t n);
void nv_put_reply_buffer(struct nv_message *m, void *buf, size_t n);
void nv_put_reply_buffers(struct nv_message *m, const struct iovec *iov, int count);
int64_t nv_remote_call(struct nv_message *m);

#endif
