//go:build spdk

/* What driver.c and queue.c share, and Go does not see. */
#ifndef NVMECR_SPDK_INTERNAL_H
#define NVMECR_SPDK_INTERNAL_H

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "driver.h"

struct driver_controller {
	struct spdk_nvme_ctrlr_opts opts; /* first: attached is given its address */
	struct spdk_nvme_probe_ctx *probe;
	struct spdk_nvme_ctrlr *ctrlr;
	struct spdk_nvme_detach_ctx *detach;
	uint32_t lasting_ms;
	char said[DRIVER_SAID];
};

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

#endif
