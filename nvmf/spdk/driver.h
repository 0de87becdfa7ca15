//go:build spdk

/* What the driver does in C: single steps, of which Go decides when and why.
 * Nothing calls back into Go; completions are noted in memory that both see.
 * Every function keeps errno. Return values are 0 or -errno unless said. */
#ifndef NVMECR_SPDK_DRIVER_H
#define NVMECR_SPDK_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* driver_init initializes SPDK's environment: on one core, with huge pages or
 * without them and local devices. It leaves the affinities and signal masks of
 * all threads as they are. -EALREADY: somebody has done so before, in this
 * process or in the one that it was forked from. */
int driver_init(bool huge, int cpu, int mebibytes);

/* The first message of each step that fails is kept, as the reason; others go
 * to stderr, unless they are no errors. */
enum { DRIVER_SAID = 256 };

/* What begins those that are about an authentication. */
#define DRIVER_PROOF "authentication: "

/* What begins that which OpenSSL says about TLS, with a number behind it. */
#define DRIVER_TLS "TLS error "

/* driver_collect makes the first message of this thread go to text, of
 * DRIVER_SAID bytes, until it is called with NULL. Only a locked thread may. */
void driver_collect(char *text);

/* driver_version is SPDK's: that of the library. */
const char *driver_version(void);

/* DMA-able memory. */
void *driver_alloc(size_t size);
void driver_free(void *memory);

/* driver_proofs is how often SPDK has taken a key for an authentication, on this
 * thread. */
uint32_t driver_proofs(void);

enum { DRIVER_KEY = 128 };

/* Where a controller is and how to be known to it. */
struct driver_address {
	const char *transport, *family, *address, *service, *subnqn, *hostnqn;
	uint8_t host_id[16];
	uint32_t queues;
	uint32_t keep_alive_ms;
	uint32_t timeout_ms, lasting_ms; /* of a step of connecting, and of what is asked later */
	bool header_digest, data_digest;
	/* The keys of host and target as NVMe's text, or empty, and what may be
	 * used with them, a bit for each of NVMe's identifiers. */
	char host_key[DRIVER_KEY], target_key[DRIVER_KEY];
	char tls_key[DRIVER_KEY]; /* the pre-shared key for TLS likewise */
	uint32_t hashes, groups;
};

/* A controller being connected to, connected, or being shut down. */
struct driver_controller;

/* driver_connect begins a connection; NULL if that is not possible. */
struct driver_controller *driver_connect(const struct driver_address *address);

/* driver_connecting goes on with it for so many microseconds. -EAGAIN: not
 * done yet; another error: it failed, and the controller is freed. */
int driver_connecting(struct driver_controller *c, uint32_t us);

/* driver_fail gives up the connection: nothing waits for answers any more. */
void driver_fail(struct driver_controller *c);

/* driver_detach begins to shut a controller without queues down, and
 * driver_detaching goes on; when that no longer returns -EAGAIN the controller
 * is freed. */
void driver_detach(struct driver_controller *c);
int driver_detaching(struct driver_controller *c, uint32_t us);

/* driver_tend sends keep-alives that are due and takes in what has come for
 * the admin queue. */
int driver_tend(struct driver_controller *c);

/* driver_watch sees to it that a local device which was taken away (-ENODEV) or
 * has failed (-EIO) is given up, by its queues too. */
int driver_watch(struct driver_controller *c);

/* driver_said is why driver_tend failed, or empty. */
const char *driver_said(struct driver_controller *c);

uint64_t driver_cap(struct driver_controller *c);

/* driver_pieces is how many pieces of memory one command may have. */
uint32_t driver_pieces(struct driver_controller *c);

/* driver_most is the longest command for a namespace that is not split in a
 * way that costs; 0 if it is not there. */
uint32_t driver_most(struct driver_controller *c, uint32_t nsid);

/* A command of any kind, and its outcome. */
struct driver_command {
	uint8_t sqe[64];
	void *data; /* from driver_alloc */
	uint32_t length;
	struct spdk_nvme_ctrlr *controller;
	bool done, lost; /* lost: with the connection */
	uint16_t status; /* without the phase bit */
};

/* driver_admin sends an admin command; driver_tend notes that it is done. */
int driver_admin(struct driver_controller *c, struct driver_command *command);

enum { DRIVER_PIECES = 16, DRIVER_RANGES = 8 };
enum driver_kind { DRIVER_FLUSH, DRIVER_WRITE, DRIVER_READ, DRIVER_DEALLOCATE, DRIVER_ANY };

struct driver_range {
	uint64_t lba;
	uint32_t blocks;
};

/* A command that this driver knows nothing of. */
struct driver_any {
	uint8_t sqe[64];
	void *data;
	uint32_t length;
};

/* A slot is a command in flight. Go writes what is above the line, C what is
 * below. */
struct driver_slot {
	uint8_t kind; /* enum driver_kind */
	bool fua;
	uint16_t pieces; /* or ranges of a deallocation */
	uint32_t blocks;
	uint64_t lba;
	union {
		struct iovec piece[DRIVER_PIECES];
		struct driver_range range[DRIVER_RANGES];
		struct driver_any any;
	} u;
	/* -- */
	bool registered; /* the device has access to the pieces themselves */
	bool done, lost;
	uint16_t status; /* without the phase bit */
	uint16_t at;     /* piece */
	uint32_t offset; /* in it */
	struct driver_queue *queue;
};

/* A queue and its slots. */
struct driver_queue {
	struct driver_slot *slot; /* depth of them */
	uint32_t depth;
	uint32_t *todo; /* slots to submit, space for depth */
	uint32_t *done; /* slots that are done, done_count of them; Go sets that to 0 */
	uint32_t done_count;
	uint32_t busy; /* slots that SPDK has */
	bool secure;   /* it uses TLS */
	int result;    /* of driver_submit: 0, or -errno if the connection is lost */
	uint32_t lasting_ms; /* of a step of connecting */
	struct spdk_nvme_qpair *pair; /* NULL: none, or lost */
	struct spdk_nvme_ctrlr *controller;
	struct spdk_nvme_ns *space;
	void *domain; /* protection domain of a device that memory can be registered with; NULL: none */
	struct driver_registration *registration; /* by slot, once anything was registered */
	char said[DRIVER_SAID]; /* why the connection was lost, or empty */
};

struct driver_queue *driver_queue_new(uint32_t depth);
void driver_queue_free(struct driver_queue *q);

/* driver_queue_open connects it, or only begins to if it is not to wait;
 * driver_queue_opening goes on then for so many microseconds. -EAGAIN: not done
 * yet; another error: it failed, and nothing is left of it. */
int driver_queue_open(struct driver_queue *q, struct driver_controller *c, uint32_t nsid, bool wait);
int driver_queue_opening(struct driver_queue *q, uint32_t us);

/* driver_queue_close disconnects it. Every slot in flight is done then. */
void driver_queue_close(struct driver_queue *q);

/* driver_register gives the device access to the pieces of a slot, which are any memory, until
 * the slot is done. If it fails nothing is registered. There is a domain. */
int driver_register(struct driver_queue *q, uint32_t slot);

/* driver_deregister ends that for a slot that was not started. */
void driver_deregister(struct driver_queue *q, uint32_t slot);

/* driver_submit starts the first count slots of todo and sends what it can.
 * It returns how many it has started: the rest has to wait until others are
 * done, or ends with the connection, of which result tells. */
uint32_t driver_submit(struct driver_queue *q, uint32_t count);

/* driver_poll polls until slot is done (any, if slot is not below depth) or so
 * many microseconds have passed. 1: it looks as if data has moved, that is, a
 * poll took much longer than one that finds nothing; -errno: the connection is
 * lost. */
int driver_poll(struct driver_queue *q, uint32_t slot, uint32_t us);

#endif
