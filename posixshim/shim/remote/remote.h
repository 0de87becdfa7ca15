/* Calls that another process of the rank makes for this one: remote.c. */
#ifndef NV_REMOTE_H
#define NV_REMOTE_H

#include "nv.h"

/* How the names of the sockets begin, in the abstract name space. */
#define NV_SOCKET "nvmecr:"

/* The head of a request and of a reply: posixshim/message.go. */
struct nv_request {
	uint32_t protocol;
	uint32_t call;
	uint32_t length;
	uint32_t zero;
	int64_t numbers[6];
};

struct nv_reply {
	int64_t result;
	uint32_t length;
	uint32_t flags;
};

#define NV_REPLY_DESCRIPTOR 1u /* a descriptor comes along, and result is a handle */
#define NV_REPLY_LAST 2u       /* the connection ends with this */

_Static_assert(sizeof(struct nv_request) == 64 && sizeof(struct nv_reply) == 16, "message.go");
_Static_assert(offsetof(struct nv_request, call) == 4 && offsetof(struct nv_request, length) == 8 &&
	       offsetof(struct nv_request, numbers) == 16, "message.go");
_Static_assert(offsetof(struct nv_reply, length) == 8 && offsetof(struct nv_reply, flags) == 12, "message.go");

/* The most bytes of data that one request carries, and that one transfer has. */
#define NV_FAR_MOST (8u << 20)
#define NV_TRANSFER 0x7ffff000u

/* A call on its way to the process that makes it. */
struct nv_message {
	int server;
	uint32_t call;
	unsigned numbers;
	unsigned capacity; /* which of them is the capacity of out */
	unsigned offset; /* which is the offset of a transfer; 0: none, it is a handle */
	unsigned strings;
	int64_t number[6];
	struct iovec string[3];
	bool data;               /* data goes, perhaps nothing */
	const struct iovec *in;  /* what goes */
	const struct iovec *out; /* buffers of the reply */
	int in_count, out_count;
	struct iovec one;        /* what in or out point to, for one buffer */
	char *outside;           /* NV_PATH bytes for the path to go on with */
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
