//go:build spdk

/* Queues, and the commands in their slots. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <spdk/env.h>
#include <spdk/nvme.h>

#include "driver.h"
#include "internal.h"

struct driver_queue *driver_queue_new(uint32_t depth)
{
	struct driver_queue *q = calloc(1, sizeof *q);

	if (q == NULL)
		return NULL;
	q->depth = depth;
	q->slot = calloc(depth, sizeof *q->slot);
	q->todo = calloc(depth, sizeof *q->todo);
	q->done = calloc(depth, sizeof *q->done);
	if (q->slot == NULL || q->todo == NULL || q->done == NULL) {
		driver_queue_free(q);
		return NULL;
	}
	for (uint32_t i = 0; i < depth; i++)
		q->slot[i].queue = q;
	return q;
}

void driver_queue_free(struct driver_queue *q)
{
	free(q->registration);
	free(q->slot);
	free(q->todo);
	free(q->done);
	free(q);
}

int driver_queue_open(struct driver_queue *q, struct driver_controller *c, uint32_t nsid, bool wait)
{
	struct spdk_nvme_ns *space = spdk_nvme_ctrlr_get_ns(c->ctrlr, nsid);
	struct spdk_nvme_io_qpair_opts opts;
	int saved = errno;
	sigset_t before;

	if (space == NULL || !spdk_nvme_ns_is_active(space))
		return -ENOENT;
	spdk_nvme_ctrlr_get_default_io_qpair_opts(c->ctrlr, &opts, sizeof opts);
	opts.io_queue_size = q->depth + 1;
	/* SPDK splits commands that cross a boundary of the device, so it needs more requests than
	 * the queue depth. */
	opts.io_queue_requests = q->depth < 32 ? 128 : 4 * q->depth;
	opts.async_mode = !wait;
	opts.delay_cmd_submit = true; /* driver_submit sends a batch at its end */
	q->done_count = q->busy = 0;
	*q->said = '\0';
	q->controller = c->ctrlr;
	q->lasting_ms = c->lasting_ms;
	q->space = space;
	q->secure = c->secure;
	connect_begin(c->lasting_ms);
	tls_begin(q->secure, &before);
	q->pair = spdk_nvme_ctrlr_alloc_io_qpair(c->ctrlr, &opts, sizeof opts);
	tls_end(q->secure, &before);
	connect_end();
	q->domain = NULL;
	errno = saved;
	return q->pair == NULL ? -EIO : 0;
}

int driver_queue_opening(struct driver_queue *q, uint32_t us)
{
	uint64_t end = after(us);
	int saved = errno, result;
	sigset_t before;

	connect_begin(q->lasting_ms);
	tls_begin(q->secure, &before);
	do {
		result = spdk_nvme_qpair_process_completions(q->pair, 0);
		tls_note(q->secure);
	} while (result >= 0 && !spdk_nvme_qpair_is_connected(q->pair) && spdk_get_ticks() < end);
	tls_end(q->secure, &before);
	connect_end();
	result = result < 0 ? result : spdk_nvme_qpair_is_connected(q->pair) ? 0 : -EAGAIN;
	if (result == 0)
		register_open(q);
	else if (result != -EAGAIN)
		driver_queue_close(q);
	errno = saved;
	return result;
}

void driver_queue_close(struct driver_queue *q)
{
	struct spdk_nvme_qpair *pair = q->pair;
	int saved = errno;
	sigset_t before;

	q->pair = NULL; /* slots that complete from now on are lost */
	tls_begin(q->secure, &before);
	if (pair != NULL)
		spdk_nvme_ctrlr_free_io_qpair(pair);
	tls_end(q->secure, &before);
	errno = saved;
}

static void note(struct driver_slot *s, uint16_t status, bool lost)
{
	struct driver_queue *q = s->queue;

	driver_deregister(q, (uint32_t)(s - q->slot));
	s->status = status;
	s->lost = lost;
	s->done = true;
	q->done[q->done_count++] = (uint32_t)(s - q->slot);
}

static void completed(void *argument, const struct spdk_nvme_cpl *cpl)
{
	struct driver_slot *s = argument;
	struct driver_queue *q = s->queue;

	q->busy--;
	note(s, status_of(cpl), q->pair == NULL || !spdk_nvme_qpair_is_connected(q->pair));
}

static void rewind_pieces(void *argument, uint32_t offset)
{
	struct driver_slot *s = argument;

	for (s->at = 0; s->at < s->pieces && offset >= s->u.piece[s->at].iov_len; s->at++)
		offset -= (uint32_t)s->u.piece[s->at].iov_len;
	s->offset = offset;
}

static int next_piece(void *argument, void **address, uint32_t *length)
{
	struct driver_slot *s = argument;

	if (s->at >= s->pieces)
		return -EINVAL;
	struct iovec *piece = &s->u.piece[s->at++];

	*address = (char *)piece->iov_base + s->offset;
	*length = (uint32_t)piece->iov_len - s->offset;
	s->offset = 0;
	return 0;
}

static int move_data(struct driver_queue *q, struct driver_slot *s)
{
	uint32_t flags = s->fua ? SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS : 0;

	if (s->registered)
		return registered_move(q, s, completed, flags, rewind_pieces, next_piece);
	if (s->pieces == 1)
		return (s->kind == DRIVER_WRITE ? spdk_nvme_ns_cmd_write : spdk_nvme_ns_cmd_read)(
			q->space, q->pair, s->u.piece[0].iov_base, s->lba, s->blocks, completed, s, flags);
	return (s->kind == DRIVER_WRITE ? spdk_nvme_ns_cmd_writev : spdk_nvme_ns_cmd_readv)(
		q->space, q->pair, s->lba, s->blocks, completed, s, flags, rewind_pieces, next_piece);
}

static int deallocate(struct driver_queue *q, struct driver_slot *s)
{
	struct spdk_nvme_dsm_range ranges[DRIVER_RANGES];

	memset(ranges, 0, sizeof ranges);
	for (uint16_t i = 0; i < s->pieces; i++) {
		ranges[i].starting_lba = s->u.range[i].lba;
		ranges[i].length = s->u.range[i].blocks;
	}
	return spdk_nvme_ns_cmd_dataset_management(q->space, q->pair, SPDK_NVME_DSM_ATTR_DEALLOCATE, ranges, s->pieces,
						   completed, s);
}

static int start(struct driver_queue *q, struct driver_slot *s)
{
	s->done = false;
	switch (s->kind) {
	case DRIVER_WRITE:
	case DRIVER_READ:
		return move_data(q, s);
	case DRIVER_DEALLOCATE:
		return deallocate(q, s);
	case DRIVER_ANY:
		return spdk_nvme_ctrlr_cmd_io_raw(q->controller, q->pair, (struct spdk_nvme_cmd *)s->u.any.sqe,
						  s->u.any.data, s->u.any.length, completed, s);
	}
	return spdk_nvme_ns_cmd_flush(q->space, q->pair, completed, s);
}

/* Internal Error with Do Not Retry, in the form of a completion's status. */
enum { INTERNAL_ERROR = 0x4006 };

uint32_t driver_submit(struct driver_queue *q, uint32_t count)
{
	int saved = errno, result;
	uint32_t started = 0;
	bool told = *q->said != '\0';
	sigset_t before;

	driver_collect(q->said);
	tls_begin(q->secure, &before);
	while (started < count) {
		struct driver_slot *s = &q->slot[q->todo[started]];

		result = start(q, s);
		if (result == -ENOMEM)
			break;
		if (result < 0) /* SPDK has refused the command, and will not complete it */
			note(s, INTERNAL_ERROR, result == -ENXIO);
		else
			q->busy++;
		started++;
	}
	result = spdk_nvme_qpair_process_completions(q->pair, 0);
	q->result = result < 0 ? result : 0;
	tls_end(q->secure, &before);
	forget(q->said, told, result);
	driver_collect(NULL);
	errno = saved;
	return started;
}

int driver_poll(struct driver_queue *q, uint32_t slot, uint32_t us)
{
	uint64_t began = spdk_get_ticks(), now, end = after(us), moved = spdk_get_ticks_hz() / 1000000 * 2;
	int saved = errno, result;
	bool busy = false, told;
	sigset_t before;

	driver_collect(q->said);
	tls_begin(q->secure, &before);
	do {
		told = *q->said != '\0';
		/* If only one command is in flight, SPDK need not look for further completions after
		 * it. */
		result = spdk_nvme_qpair_process_completions(q->pair, q->busy == 1);
		forget(q->said, told, result);
		now = spdk_get_ticks();
		busy = busy || now - began > moved;
		began = now;
	} while (result >= 0 && (slot < q->depth ? !q->slot[slot].done : q->done_count == 0) && now < end);
	tls_end(q->secure, &before);
	driver_collect(NULL);
	errno = saved;
	return result < 0 ? result : busy;
}
