//go:build spdk

/* What the C files share, and Go does not see. */
#ifndef NVMECR_SPDK_INTERNAL_H
#define NVMECR_SPDK_INTERNAL_H

#include <signal.h>

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "driver.h"

struct driver_controller {
	struct spdk_nvme_ctrlr_opts opts; /* first: attached is given its address */
	struct spdk_nvme_probe_ctx *probe;
	struct spdk_nvme_ctrlr *ctrlr;
	struct spdk_nvme_detach_ctx *detach;
	uint32_t timeout_ms, lasting_ms;
	bool secure; /* it uses TLS */
	char said[DRIVER_SAID];
};

/* keys_init makes SPDK's keyring; once, with the environment. */
int keys_init(void);

/* keys_hold puts the keys of address, if there are any, into the keyring for a
 * controller, whose queues need them as long as it is there; keys_drop takes
 * them out and clears them. */
int keys_hold(struct spdk_nvme_ctrlr_opts *opts, const struct driver_address *address);
void keys_drop(struct spdk_nvme_ctrlr_opts *opts);

/* tls_init keeps OpenSSL from giving everything up before the process has ended;
 * once, before anything else of it is called. */
void tls_init(void);

/* What may use a connection stands between tls_begin and tls_end, which keep
 * OpenSSL's signals and errors apart from the application's. Nothing happens
 * without TLS. */
void tls_begin(bool secure, sigset_t *before);
void tls_end(bool secure, const sigset_t *before);

/* tls_note keeps OpenSSL's error, if there is one, as the reason; tls_end does so
 * too. */
void tls_note(bool secure);
void tls_reason(int number, const char *text);

/* What connects stands between connect_begin and connect_end, and has so long for it.
 * Any number of threads may. */
void connect_begin(uint32_t ms);
void connect_end(void);

/* forget clears what was told before a step that has brought answers (a positive
 * result): it is not why a connection is lost later. SPDK does not say all there is in
 * the step that fails, so what was told since stays. */
static inline void forget(char *said, bool told, int result)
{
	if (told && result > 0)
		*said = '\0';
}

/* after is when so many microseconds will have passed, in ticks. */
static inline uint64_t after(uint32_t us)
{
	return spdk_get_ticks() + spdk_get_ticks_hz() / 1000000 * us;
}

/* status_of is the status of a completion without the phase bit. */
static inline uint16_t status_of(const struct spdk_nvme_cpl *cpl)
{
	return cpl->status_raw >> 1;
}

/* register_open finds out whether memory can be registered with the device of a queue. */
void register_open(struct driver_queue *q);

/* registered_move submits a slot whose memory is registered. */
int registered_move(struct driver_queue *q, struct driver_slot *s, spdk_nvme_cmd_cb done, uint32_t flags,
	      spdk_nvme_req_reset_sgl_cb rewind, spdk_nvme_req_next_sge_cb next);

#endif
