//go:build spdk

/* Declarations that the C files share, and that Go does not use. */
#ifndef NVMECR_SPDK_INTERNAL_H
#define NVMECR_SPDK_INTERNAL_H

#include <signal.h>

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "driver.h"

struct driver_controller {
	struct spdk_nvme_ctrlr_opts opts; /* must be the first field: attached gets its address */
	struct spdk_nvme_probe_ctx *probe;
	struct spdk_nvme_ctrlr *ctrlr;
	struct spdk_nvme_detach_ctx *detach;
	uint32_t timeout_ms, lasting_ms;
	bool secure; /* the connection uses TLS */
	char said[DRIVER_SAID];
};

/* keys_init initializes SPDK's keyring. It is called once, with the environment. */
int keys_init(void);

/* keys_hold adds the keys of address, if there are any, to the keyring for a controller. The
 * queues of the controller need the keys as long as it exists. keys_drop removes and clears
 * them. */
int keys_hold(struct spdk_nvme_ctrlr_opts *opts, const struct driver_address *address);
void keys_drop(struct spdk_nvme_ctrlr_opts *opts);

/* tls_init keeps OpenSSL from freeing its resources before the process has ended. It is called
 * once, before any other function of OpenSSL. */
void tls_init(void);

/* Code that may use a connection runs between tls_begin and tls_end. They separate OpenSSL's
 * signals and errors from the application's. Without secure they do nothing. */
void tls_begin(bool secure, sigset_t *before);
void tls_end(bool secure, const sigset_t *before);

/* tls_note records OpenSSL's error, if there is one, as the reason of a failure. tls_end does
 * so, too. */
void tls_note(bool secure);
void tls_reason(int number, const char *text);

/* Code that connects runs between connect_begin and connect_end. ms is the time limit of the
 * connection. Any number of threads may do so concurrently. */
void connect_begin(uint32_t ms);
void connect_end(void);

/* forget clears a message from before a step, if the step has received answers (a positive
 * result): that message is not the reason if the connection is lost later. Messages of the step
 * itself are kept, since SPDK may report the reason in an earlier step than the one that fails. */
static inline void forget(char *said, bool told, int result)
{
	if (told && result > 0)
		*said = '\0';
}

/* after returns the time, in ticks, at which the given number of microseconds will have passed. */
static inline uint64_t after(uint32_t us)
{
	return spdk_get_ticks() + spdk_get_ticks_hz() / 1000000 * us;
}

/* status_of returns the status of a completion without the phase bit. */
static inline uint16_t status_of(const struct spdk_nvme_cpl *cpl)
{
	return cpl->status_raw >> 1;
}

/* register_open determines whether memory can be registered with the device of a queue. */
void register_open(struct driver_queue *q);

/* registered_move submits a slot whose memory is registered. */
int registered_move(struct driver_queue *q, struct driver_slot *s, spdk_nvme_cmd_cb done, uint32_t flags,
	      spdk_nvme_req_reset_sgl_cb rewind, spdk_nvme_req_next_sge_cb next);

#endif
