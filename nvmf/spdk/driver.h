//go:build spdk

/* The C part of the driver. It consists of single steps; Go decides when each step runs. C
 * never calls Go. Completions are recorded in memory that both access. Every function preserves
 * errno. Functions return 0 or -errno unless the comment says otherwise. */
#ifndef NVMECR_SPDK_DRIVER_H
#define NVMECR_SPDK_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* driver_init initializes SPDK's environment on one core. With huge, it uses huge pages and
 * local devices; otherwise neither. It preserves the CPU affinities and signal masks of all
 * threads. -EALREADY: this process, or the process that it was forked from, has already
 * initialized SPDK. */
int driver_init(bool huge, int cpu, int mebibytes);

/* The first message of each failing step is kept as the reason of the failure. Other errors go
 * to stderr. Messages that are not errors are dropped. */
enum { DRIVER_SAID = 256 };

/* Prefix of messages about an authentication. */
#define DRIVER_PROOF "authentication: "

/* Prefix of an error of OpenSSL about TLS. OpenSSL's error number follows. */
#define DRIVER_TLS "TLS error "

/* driver_collect redirects the first message of this thread to text, which has DRIVER_SAID
 * bytes, until it is called with NULL. The calling goroutine must be locked to its thread. */
void driver_collect(char *text);

/* driver_version returns the version of the SPDK library. */
const char *driver_version(void);

/* Memory for DMA. */
void *driver_alloc(size_t size);
void driver_free(void *memory);

/* driver_proofs returns how many keys SPDK has read for authentications on this thread. */
uint32_t driver_proofs(void);

enum { DRIVER_KEY = 128 };

/* Parameters of a connection to a controller. */
struct driver_address {
	const char *transport, *family, *address, *service, *subnqn, *hostnqn;
	uint8_t host_id[16];
	uint32_t queues;
	uint32_t keep_alive_ms;
	uint32_t timeout_ms, lasting_ms; /* time limits of a step of connecting, and of later commands */
	bool header_digest, data_digest;
	/* The secrets of host and target in NVMe's text form, or empty. hashes and groups have a
	 * bit for each of NVMe's identifiers that may be used with them. */
	char host_key[DRIVER_KEY], target_key[DRIVER_KEY];
	char tls_key[DRIVER_KEY]; /* the pre-shared key for TLS in its text form, or empty */
	uint32_t hashes, groups;
};

/* A controller that is being connected, connected, or being shut down. */
struct driver_controller;

/* driver_connect begins a connection. It returns NULL on failure. */
struct driver_controller *driver_connect(const struct driver_address *address);

/* driver_connecting continues the connection for the given number of microseconds. -EAGAIN: not
 * complete yet. Any other error: the connection has failed, and the controller is freed. */
int driver_connecting(struct driver_controller *c, uint32_t us);

/* driver_fail gives the connection up. Commands in flight end without an answer. */
void driver_fail(struct driver_controller *c);

/* driver_detach begins to shut a controller down, which must have no queues. driver_detaching
 * continues that. When it returns another result than -EAGAIN, the controller is freed. */
void driver_detach(struct driver_controller *c);
int driver_detaching(struct driver_controller *c, uint32_t us);

/* driver_tend polls the admin queue: it sends keep-alives that are due, and processes received
 * data. */
int driver_tend(struct driver_controller *c);

/* driver_watch checks a local device. If the device was removed (-ENODEV) or has failed (-EIO),
 * driver_watch gives up its connection, including its queues. */
int driver_watch(struct driver_controller *c);

/* driver_said returns the reason of a failure of driver_tend, or an empty string. */
const char *driver_said(struct driver_controller *c);

uint64_t driver_cap(struct driver_controller *c);

/* driver_pieces returns the maximum number of pieces of memory in a command. */
uint32_t driver_pieces(struct driver_controller *c);

/* driver_most returns the maximum size of a command to a namespace that SPDK does not split. It
 * returns 0 if there is no such namespace. */
uint32_t driver_most(struct driver_controller *c, uint32_t nsid);

/* A command of any kind, and its result. */
struct driver_command {
	uint8_t sqe[64];
	void *data; /* from driver_alloc */
	uint32_t length;
	struct spdk_nvme_ctrlr *controller;
	bool done, lost; /* lost: the connection was lost before an answer */
	uint16_t status; /* without the phase bit */
};

/* driver_admin submits an admin command. driver_tend records its completion. */
int driver_admin(struct driver_controller *c, struct driver_command *command);

enum { DRIVER_PIECES = 16, DRIVER_RANGES = 8 };
enum driver_kind { DRIVER_FLUSH, DRIVER_WRITE, DRIVER_READ, DRIVER_DEALLOCATE, DRIVER_ANY };

struct driver_range {
	uint64_t lba;
	uint32_t blocks;
};

/* A command that is passed to the controller unchanged. */
struct driver_any {
	uint8_t sqe[64];
	void *data;
	uint32_t length;
};

/* A slot holds a command in flight. Go writes the fields above the line, and C those below. */
struct driver_slot {
	uint8_t kind; /* enum driver_kind */
	bool fua;
	uint16_t pieces; /* or number of ranges of a deallocation */
	uint32_t blocks;
	uint64_t lba;
	union {
		struct iovec piece[DRIVER_PIECES];
		struct driver_range range[DRIVER_RANGES];
		struct driver_any any;
	} u;
	/* -- */
	bool registered; /* the pieces are registered with the device */
	bool done, lost;
	uint16_t status; /* without the phase bit */
	uint16_t at;     /* current piece */
	uint32_t offset; /* offset in the current piece */
	struct driver_queue *queue;
};

/* A queue and its slots. */
struct driver_queue {
	struct driver_slot *slot; /* depth slots */
	uint32_t depth;
	uint32_t *todo; /* slots to submit, space for depth */
	uint32_t *done; /* completed slots, done_count of them; Go resets done_count to 0 */
	uint32_t done_count;
	uint32_t busy; /* number of slots that SPDK processes */
	bool secure;   /* the connection uses TLS */
	int result;    /* result of driver_submit: 0, or -errno if the connection is lost */
	uint32_t lasting_ms; /* time limit of a step of connecting */
	struct spdk_nvme_qpair *pair; /* NULL: none, or lost */
	struct spdk_nvme_ctrlr *controller;
	struct spdk_nvme_ns *space;
	void *domain; /* protection domain for memory registration; NULL: not possible */
	struct driver_registration *registration; /* by slot, allocated when it is first needed */
	char said[DRIVER_SAID]; /* why the connection was lost, or empty */
};

struct driver_queue *driver_queue_new(uint32_t depth);
void driver_queue_free(struct driver_queue *q);

/* driver_queue_open connects a queue. Without wait it only begins, and driver_queue_opening
 * continues for the given number of microseconds. -EAGAIN: not complete yet. Any other error:
 * the connection has failed, and its resources are freed. */
int driver_queue_open(struct driver_queue *q, struct driver_controller *c, uint32_t nsid, bool wait);
int driver_queue_opening(struct driver_queue *q, uint32_t us);

/* driver_queue_close disconnects a queue. All slots in flight are then completed. */
void driver_queue_close(struct driver_queue *q);

/* driver_register gives the device access to the pieces of a slot, in any memory, until the
 * slot is completed. If it fails, nothing is registered. q->domain must not be NULL. */
int driver_register(struct driver_queue *q, uint32_t slot);

/* driver_deregister ends that access for a slot that was not submitted. */
void driver_deregister(struct driver_queue *q, uint32_t slot);

/* driver_submit submits the first count slots of todo, and sends as much as possible. It
 * returns the number of submitted slots. The others must wait until other slots are completed.
 * If the connection is lost, q->result says so. */
uint32_t driver_submit(struct driver_queue *q, uint32_t count);

/* driver_poll polls until the given slot is completed, or any slot if slot is not less than
 * depth, for at most the given number of microseconds. It returns 1 if a poll took much longer
 * than one without data, which means that data was transferred. It returns -errno if the
 * connection is lost. */
int driver_poll(struct driver_queue *q, uint32_t slot, uint32_t us);

#endif
