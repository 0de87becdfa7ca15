//go:build spdk

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spdk/env.h>
#include <spdk/log.h>
#include <spdk/nvme.h>
#include <spdk/version.h>

#include "driver.h"
#include "internal.h"

/* Messages. */

/* Receives the messages of this thread; NULL means stderr. */
static __thread char *said;

static void pass_on(const char *kind, const char *text)
{
	int length = (int)strcspn(text, "\n");

	if (said != NULL)
		snprintf(said, DRIVER_SAID, "%s%.*s", kind, length, text);
	else
		fprintf(stderr, "nvmecr: SPDK: %s%.*s\n", kind, length, text);
}

static void say(int level, const char *file, const int line, const char *func, const char *format, va_list ap)
{
	const char *kind = file != NULL && strstr(file, "nvme_auth.c") != NULL ? DRIVER_PROOF : "";
	char text[1024]; /* a message may contain two NQNs */

	(void)line, (void)func;
	/* A message with a status has precedence over all others, and then one about
	 * authentication. */
	if (level > SPDK_LOG_ERROR || (said != NULL && *said != '\0' && strstr(format, "sct %d") == NULL &&
				       (*kind == '\0' || strncmp(said, kind, strlen(kind)) == 0)))
		return;
	vsnprintf(text, sizeof text, format, ap);
	/* "[who and where] [states] what is wrong\n" */
	char *from = text, *end;

	while (*from == '[' && (end = strstr(from, "] ")) != NULL)
		from = end + 2;
	pass_on(kind, from);
}

/* dpdk_says receives DPDK's log, one message a call. */
static ssize_t dpdk_says(void *cookie, const char *message, size_t n)
{
	char text[DRIVER_SAID];

	(void)cookie;
	if (said == NULL || *said == '\0') {
		snprintf(text, sizeof text, "%.*s", (int)n, message);
		pass_on("", text);
	}
	return (ssize_t)n;
}

void tls_reason(int number, const char *text)
{
	if (said != NULL && strstr(said, "sct ") == NULL && strncmp(said, DRIVER_TLS, strlen(DRIVER_TLS)) != 0)
		snprintf(said, DRIVER_SAID, DRIVER_TLS "%d: %s", number, text != NULL ? text : "unknown");
}

void driver_collect(char *text)
{
	said = text;
}

const char *driver_version(void)
{
	static char version[64];

	/* "SPDK v26.05 git sha1 ..." */
	if (sscanf(SPDK_VERSION_STRING, "SPDK v%63s", version) != 1)
		snprintf(version, sizeof version, "%s", SPDK_VERSION_STRING);
	return version;
}

/* The environment. */

struct environment {
	bool huge;
	int cpu, mebibytes;
	char *said; /* receives the messages */
	int result;
};

/* Functions of DPDK. */
const char *rte_eal_get_runtime_dir(void);
int rte_openlog_stream(FILE *stream);

/* collect_dpdk redirects DPDK's log from stderr and the system's log to dpdk_says. */
static void collect_dpdk(void)
{
	cookie_io_functions_t calls = {.write = dpdk_says};
	FILE *log = fopencookie(NULL, "w", calls);

	if (log != NULL)
		rte_openlog_stream(log);
}

/* initialize initializes SPDK. It runs on a new thread, because DPDK pins the thread that
 * initializes it. All signals are blocked on that thread, and on those that it starts. */
static void *initialize(void *argument)
{
	struct environment *e = argument;
	struct spdk_env_opts opts;
	char map[32];

	said = e->said;
	tls_init();
	collect_dpdk();
	opts.opts_size = sizeof opts;
	spdk_env_opts_init(&opts);
	/* Whatever the number of CPUs, DPDK gets one core, with the number 0. */
	snprintf(map, sizeof map, "0@%d", e->cpu);
	opts.name = "nvmecr";
	opts.core_mask = NULL;
	opts.lcore_map = map;
	opts.shm_id = -1;
	opts.mem_size = e->mebibytes;
	opts.env_context = (void *)"--log-level=*:error";
	if (!e->huge) {
		opts.no_huge = true;
		opts.no_pci = true;
		opts.iova_mode = "va";
	}
	e->result = spdk_env_init(&opts);
	if (e->result == 0) {
		rmdir(rte_eal_get_runtime_dir()); /* the empty directory would outlive the process */
		e->result = keys_init();
	}
	return NULL;
}

int driver_init(bool huge, int cpu, int mebibytes)
{
	struct environment e = {huge, cpu, mebibytes, said, 0};
	sigset_t all, before;
	pthread_t thread;
	int saved = errno;

	/* In a forked child the environment exists, but belongs to the parent. A second
	 * initialization would print an error to the application's stderr. */
	if (spdk_env_get_core_count() > 0)
		return -EALREADY;
	spdk_log_open(say);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int result = -pthread_create(&thread, NULL, initialize, &e);

	if (result == 0) {
		pthread_join(thread, NULL);
		result = e.result;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return result;
}

/* rte_eal_cleanup replaces DPDK's function of that name, which SPDK calls in a destructor and
 * which unmaps DPDK's memory. The application's files must work until libc flushes the last
 * stream, and that is after all destructors. The kernel frees the memory right afterwards. */
int rte_eal_cleanup(void);
int rte_eal_cleanup(void)
{
	return 0;
}

void *driver_alloc(size_t size)
{
	return spdk_dma_zmalloc(size, 4096, NULL);
}

void driver_free(void *memory)
{
	spdk_dma_free(memory);
}

/* SPDK sets a handler for SIGBUS when it is loaded. This restores the default action. */
__attribute__((constructor)) static void give_back_signal(void)
{
	struct sigaction now;
	Dl_info from;

	if (sigaction(SIGBUS, NULL, &now) == 0 && (void *)now.sa_sigaction != (void *)SIG_DFL &&
	    dladdr((void *)now.sa_sigaction, &from) != 0 && strstr(from.dli_fname, "libspdk") != NULL)
		signal(SIGBUS, SIG_DFL);
}

/* Controllers. */

static void attached(void *context, const struct spdk_nvme_transport_id *trid, struct spdk_nvme_ctrlr *ctrlr,
		     const struct spdk_nvme_ctrlr_opts *opts)
{
	struct driver_controller *c = context;

	(void)trid, (void)opts;
	c->ctrlr = ctrlr;
}

static int address_of(struct spdk_nvme_transport_id *id, const struct driver_address *a)
{
	memset(id, 0, sizeof *id);
	if (spdk_nvme_transport_id_populate_trstring(id, a->transport) != 0 ||
	    spdk_nvme_transport_id_parse_trtype(&id->trtype, a->transport) != 0)
		return -EINVAL;
	if (*a->family != '\0' && spdk_nvme_transport_id_parse_adrfam(&id->adrfam, a->family) != 0)
		return -EINVAL;
	snprintf(id->traddr, sizeof id->traddr, "%s", a->address);
	snprintf(id->trsvcid, sizeof id->trsvcid, "%s", a->service);
	snprintf(id->subnqn, sizeof id->subnqn, "%s", a->subnqn);
	return 0;
}

static void discard(struct driver_controller *c)
{
	keys_drop(&c->opts);
	free(c);
}

/* SPDK limits the time for a connection over TCP, and for each step of one over RDMA, by
 * options of the whole process. So threads that connect share these options, and the last one
 * restores the values from before. The only other operation that uses the options is a
 * disconnection over RDMA, which must not wait that long for a target that does not answer. */
static struct {
	pthread_mutex_t mutex;
	int threads;
	struct spdk_nvme_transport_opts before;
} connecting = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void connect_begin(uint32_t ms)
{
	struct spdk_nvme_transport_opts opts;

	pthread_mutex_lock(&connecting.mutex);
	spdk_nvme_transport_get_opts(&opts, sizeof opts);
	if (connecting.threads++ == 0)
		connecting.before = opts;
	opts.tcp_connect_timeout_ms = ms;
	opts.rdma_cm_event_timeout_ms = ms < UINT16_MAX ? (uint16_t)ms : UINT16_MAX;
	spdk_nvme_transport_set_opts(&opts, sizeof opts);
	pthread_mutex_unlock(&connecting.mutex);
}

void connect_end(void)
{
	pthread_mutex_lock(&connecting.mutex);
	if (--connecting.threads == 0)
		spdk_nvme_transport_set_opts(&connecting.before, sizeof connecting.before);
	pthread_mutex_unlock(&connecting.mutex);
}

/* The maximum number of retries, which Linux's host uses, too. */
enum { RDMA_RETRIES = 7 };

struct driver_controller *driver_connect(const struct driver_address *a)
{
	struct driver_controller *c = calloc(1, sizeof *c);
	struct spdk_nvme_transport_id id;
	int saved = errno;

	if (c == NULL || address_of(&id, a) != 0) {
		free(c);
		return NULL;
	}
	spdk_nvme_ctrlr_get_default_ctrlr_opts(&c->opts, sizeof c->opts);
	c->opts.num_io_queues = a->queues;
	c->opts.keep_alive_timeout_ms = a->keep_alive_ms;
	/* The driver itself decides which commands are retried, so SPDK's retry count is 0. Over
	 * RDMA, however, the count is the number of times that either end retransmits a packet that
	 * was not acknowledged. With 0, the first lost or late packet would end the connection. */
	c->opts.transport_retry_count = id.trtype == SPDK_NVME_TRANSPORT_RDMA ? RDMA_RETRIES : 0;
	snprintf(c->opts.hostnqn, sizeof c->opts.hostnqn, "%s", a->hostnqn);
	memcpy(c->opts.extended_host_id, a->host_id, sizeof a->host_id);
	memcpy(c->opts.host_id, a->host_id, sizeof c->opts.host_id);
	c->opts.header_digest = a->header_digest;
	c->opts.data_digest = a->data_digest;
	c->opts.admin_timeout_ms = a->timeout_ms;
	c->opts.fabrics_connect_timeout_us = (uint64_t)a->timeout_ms * 1000;
	c->opts.disable_error_logging = true;
#if SPDK_VERSION >= SPDK_VERSION_NUM(26, 9, 0)
	/* The driver never submits more commands than the queue has space for. Over TCP a target
	 * may send the completion of a read with its data only if the host has disabled flow
	 * control. Older targets of SPDK do so in any case. */
	c->opts.disable_sq_flow_control = true;
#endif
	c->timeout_ms = a->timeout_ms;
	c->lasting_ms = a->lasting_ms;
	c->secure = *a->tls_key != '\0';
	connect_begin(c->timeout_ms);
	if (keys_hold(&c->opts, a) == 0)
		c->probe = spdk_nvme_connect_async(&id, &c->opts, attached);
	connect_end();
	if (c->probe == NULL) {
		discard(c);
		c = NULL;
	}
	errno = saved;
	return c;
}

/* outlast sets the time limits for later commands to the controller, in place of the time that
 * was left for the connection. */
static void outlast(struct driver_controller *c)
{
	/* The cast removes const: the controller itself uses this structure. */
	struct spdk_nvme_ctrlr_opts *opts = (struct spdk_nvme_ctrlr_opts *)spdk_nvme_ctrlr_get_opts(c->ctrlr);

	opts->admin_timeout_ms = c->lasting_ms;
	opts->fabrics_connect_timeout_us = (uint64_t)c->lasting_ms * 1000;
}

int driver_connecting(struct driver_controller *c, uint32_t us)
{
	bool secure = c->secure; /* c may be freed at the end */
	uint64_t end = after(us);
	int saved = errno, result;
	sigset_t before;

	connect_begin(c->timeout_ms);
	tls_begin(secure, &before);
	do {
		result = spdk_nvme_probe_poll_async(c->probe);
		tls_note(secure);
	} while (result == -EAGAIN && spdk_get_ticks() < end);
	tls_end(secure, &before);
	connect_end();
	if (result != -EAGAIN) {
		c->probe = NULL;
		result = c->ctrlr != NULL ? 0 : -ENXIO;
		if (result != 0)
			discard(c);
		else
			outlast(c);
	}
	errno = saved;
	return result;
}

void driver_fail(struct driver_controller *c)
{
	int saved = errno;
	char *outer = said;
	sigset_t before;

	said = c->said;
	tls_begin(c->secure, &before);
	spdk_nvme_ctrlr_fail(c->ctrlr);
	tls_end(c->secure, &before);
	said = outer;
	errno = saved;
}

void driver_detach(struct driver_controller *c)
{
	int saved = errno;
	sigset_t before;

	tls_begin(c->secure, &before);
	if (spdk_nvme_detach_async(c->ctrlr, &c->detach) != 0)
		c->detach = NULL;
	tls_end(c->secure, &before);
	errno = saved;
}

int driver_detaching(struct driver_controller *c, uint32_t us)
{
	uint64_t end = after(us);
	int saved = errno, result = 0;
	sigset_t before;

	tls_begin(c->secure, &before);
	if (c->detach != NULL)
		do
			result = spdk_nvme_detach_poll_async(c->detach);
		while (result == -EAGAIN && spdk_get_ticks() < end);
	tls_end(c->secure, &before);
	if (result != -EAGAIN)
		discard(c);
	errno = saved;
	return result;
}

int driver_tend(struct driver_controller *c)
{
	bool told = *c->said != '\0';
	int saved = errno, result;
	sigset_t before;

	driver_collect(c->said);
	tls_begin(c->secure, &before);
	result = spdk_nvme_ctrlr_process_admin_completions(c->ctrlr);
	tls_end(c->secure, &before);
	forget(c->said, told, result);
	driver_collect(NULL);
	errno = saved;
	return result < 0 ? result : 0;
}

/* scan processes the kernel's notifications about removed devices. */
static void scan(void)
{
#if SPDK_VERSION >= SPDK_VERSION_NUM(24, 9, 0)
	struct spdk_nvme_transport_id id = {0};

	spdk_nvme_trid_populate_transport(&id, SPDK_NVME_TRANSPORT_PCIE);
	spdk_nvme_scan_attached(&id);
#endif
}

int driver_watch(struct driver_controller *c)
{
	union spdk_nvme_csts_register state;
	int saved = errno, result = 0;

	said = c->said;
	scan();
	if (spdk_nvme_ctrlr_is_failed(c->ctrlr)) {
		result = -ENODEV;
	} else {
		state = spdk_nvme_ctrlr_get_regs_csts(c->ctrlr);
		if (state.raw == UINT32_MAX) /* a read from a missing device returns all ones */
			result = -ENODEV;
		else if (state.bits.cfs || !state.bits.rdy) /* another program has reset the device */
			result = -EIO;
		if (result != 0)
			spdk_nvme_ctrlr_fail(c->ctrlr);
	}
	said = NULL;
	errno = saved;
	return result;
}

const char *driver_said(struct driver_controller *c)
{
	return c->said;
}

uint64_t driver_cap(struct driver_controller *c)
{
	return spdk_nvme_ctrlr_get_regs_cap(c->ctrlr).raw;
}

uint32_t driver_pieces(struct driver_controller *c)
{
	uint32_t n = spdk_nvme_ctrlr_get_max_sges(c->ctrlr);

	return n < DRIVER_PIECES ? n : DRIVER_PIECES;
}

uint32_t driver_most(struct driver_controller *c, uint32_t nsid)
{
	struct spdk_nvme_ns *space = spdk_nvme_ctrlr_get_ns(c->ctrlr, nsid);

	return space == NULL || !spdk_nvme_ns_is_active(space) ? 0 : spdk_nvme_ns_get_max_io_xfer_size(space);
}

static void admin_done(void *argument, const struct spdk_nvme_cpl *cpl)
{
	struct driver_command *command = argument;

	command->status = status_of(cpl);
	/* Commands that SPDK aborts with their connection have a status as if the controller had
	 * answered. */
	command->lost = spdk_nvme_ctrlr_is_failed(command->controller) ||
			spdk_nvme_ctrlr_get_admin_qp_failure_reason(command->controller) != SPDK_NVME_QPAIR_FAILURE_NONE;
	command->done = true;
}

int driver_admin(struct driver_controller *c, struct driver_command *command)
{
	int saved = errno, result;
	sigset_t before;

	command->done = command->lost = false;
	command->controller = c->ctrlr;
	driver_collect(c->said);
	tls_begin(c->secure, &before);
	result = spdk_nvme_ctrlr_cmd_admin_raw(c->ctrlr, (struct spdk_nvme_cmd *)command->sqe, command->data,
					       command->length, admin_done, command);
	tls_end(c->secure, &before);
	driver_collect(NULL);
	errno = saved;
	return result;
}
