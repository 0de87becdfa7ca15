//go:build spdk

/* Registration of the program's memory with an RDMA device for the time of one command.
 *
 * A command may carry a memory domain of SPDK. The owner of the domain tells SPDK the keys by
 * which the device accesses a piece of memory. The domain of this file registers each piece for
 * one command only, with no more rights than that command needs. It deregisters the piece
 * before the command completes. So nothing depends on the program's later use of the memory.
 * Nothing is added to SPDK's own map either, which has only whole pages, and each page once. */

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <spdk/config.h>
#include <spdk/dma.h>

#include "driver.h"
#include "internal.h"

#ifdef SPDK_CONFIG_RDMA

#include <infiniband/verbs.h>

/* The memory regions of a slot. */
struct driver_registration {
	struct spdk_nvme_ns_cmd_ext_io_opts opts;
	struct ibv_mr *region[DRIVER_PIECES];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct spdk_memory_domain *domain; /* NULL: memory cannot be registered */

static struct ibv_mr *register_piece(struct ibv_pd *pd, void *address, size_t length, bool inward)
{
	return ibv_reg_mr(pd, address, length, inward ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
}

static bool within(const struct iovec *piece, const char *address, size_t length)
{
	size_t before = (size_t)(address - (char *)piece->iov_base); /* a huge number if address is before the first byte */

	return before < piece->iov_len && length <= piece->iov_len - before;
}

/* keys_of returns to SPDK the keys of a part of a piece. */
static int keys_of(struct spdk_memory_domain *from, void *argument, struct spdk_memory_domain *to,
		   struct spdk_memory_domain_translation_ctx *how, void *address, size_t length,
		   struct spdk_memory_domain_translation_result *result)
{
	struct driver_slot *s = argument;
	struct driver_registration *r = &s->queue->registration[s - s->queue->slot];
	struct ibv_pd *pd = ((struct ibv_qp *)how->rdma.ibv_qp)->pd;
	uint16_t i = 0;

	(void)from;
	while (i < s->pieces && !within(&s->u.piece[i], address, length))
		i++;
	if (i == s->pieces)
		return -EFAULT;
	if (r->region[i]->pd != pd) { /* the queue uses another device than the admin queue */
		struct ibv_mr *other = register_piece(pd, s->u.piece[i].iov_base, s->u.piece[i].iov_len, s->kind == DRIVER_READ);

		if (other == NULL)
			return -errno;
		ibv_dereg_mr(r->region[i]);
		r->region[i] = other;
		s->queue->domain = pd;
	}
	result->iov_count = 1;
	result->iov.iov_base = address;
	result->iov.iov_len = length;
	result->dst_domain = to;
	result->rdma.lkey = r->region[i]->lkey;
	result->rdma.rkey = r->region[i]->rkey;
	return 0;
}

/* prepare creates the domain. It does not if after a fork the child could keep the registered
 * pages and this process get copies. Kernels before 5.13 do not exclude that. */
static void prepare(void)
{
	if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED ||
	    spdk_memory_domain_create(&domain, SPDK_DMA_DEVICE_TYPE_RDMA, NULL, "nvmecr") != 0)
		return;
	spdk_memory_domain_set_translation(domain, keys_of);
}

void register_open(struct driver_queue *q)
{
	struct spdk_memory_domain *of[1];
	struct spdk_memory_domain_ctx *context;
	struct ibv_pd *pd;

	q->domain = NULL;
	if (spdk_nvme_ctrlr_get_transport_id(q->controller)->trtype != SPDK_NVME_TRANSPORT_RDMA ||
	    spdk_nvme_ctrlr_get_memory_domains(q->controller, of, 1) != 1)
		return;
	pthread_once(&once, prepare);
	context = spdk_memory_domain_get_context(of[0]);
	if (domain == NULL || context == NULL || context->user_ctx == NULL)
		return;
	pd = ((struct spdk_memory_domain_rdma_ctx *)context->user_ctx)->ibv_pd;
	if (pd->context->device->transport_type != IBV_TRANSPORT_IB) /* other transports require more rights */
		return;
	if (q->registration == NULL)
		q->registration = calloc(q->depth, sizeof *q->registration);
	if (q->registration != NULL)
		q->domain = pd;
}

int driver_register(struct driver_queue *q, uint32_t slot)
{
	struct driver_slot *s = &q->slot[slot];
	struct driver_registration *r = &q->registration[slot];
	int saved = errno, result = 0;

	for (uint16_t i = 0; i < s->pieces && result == 0; i++) {
		r->region[i] = register_piece(q->domain, s->u.piece[i].iov_base, s->u.piece[i].iov_len, s->kind == DRIVER_READ);
		if (r->region[i] == NULL)
			result = -errno;
	}
	s->registered = true;
	if (result != 0)
		driver_deregister(q, slot);
	errno = saved;
	return result;
}

void driver_deregister(struct driver_queue *q, uint32_t slot)
{
	struct driver_registration *r;
	int saved = errno;

	if (!q->slot[slot].registered)
		return;
	r = &q->registration[slot];
	for (int i = 0; i < DRIVER_PIECES; i++)
		if (r->region[i] != NULL) {
			ibv_dereg_mr(r->region[i]);
			r->region[i] = NULL;
		}
	q->slot[slot].registered = false;
	errno = saved;
}

int registered_move(struct driver_queue *q, struct driver_slot *s, spdk_nvme_cmd_cb done, uint32_t flags,
	      spdk_nvme_req_reset_sgl_cb rewind, spdk_nvme_req_next_sge_cb next)
{
	struct spdk_nvme_ns_cmd_ext_io_opts *opts = &q->registration[s - q->slot].opts;

	opts->size = sizeof *opts;
	opts->memory_domain = domain;
	opts->memory_domain_ctx = s;
	opts->io_flags = flags;
	return (s->kind == DRIVER_WRITE ? spdk_nvme_ns_cmd_writev_ext : spdk_nvme_ns_cmd_readv_ext)(
		q->space, q->pair, s->lba, s->blocks, done, s, rewind, next, opts);
}

#else /* SPDK was built without RDMA. */

void register_open(struct driver_queue *q)
{
	q->domain = NULL;
}

int driver_register(struct driver_queue *q, uint32_t slot)
{
	(void)q, (void)slot;
	return -ENOTSUP;
}

void driver_deregister(struct driver_queue *q, uint32_t slot)
{
	(void)q, (void)slot;
}

int registered_move(struct driver_queue *q, struct driver_slot *s, spdk_nvme_cmd_cb done, uint32_t flags,
	      spdk_nvme_req_reset_sgl_cb rewind, spdk_nvme_req_next_sge_cb next)
{
	(void)q, (void)s, (void)done, (void)flags, (void)rewind, (void)next;
	return -ENOTSUP;
}

#endif
