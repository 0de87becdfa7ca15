/* The runtime's own threads: what they are called and where they run.
 *
 * A launcher that pins a rank to a core pins what the rank starts as well. The
 * runtime's threads have little to do while the application computes, but what
 * they do would stop it, and when it waits for one of them (a state checkpoint
 * in the background, the garbage collector) both share the core. So where the
 * process is pinned to one core, the runtime's threads leave it for the others
 * that the launcher itself may use: those of the nearest ancestor that has
 * more. The kernel keeps them within the job's cpuset whatever we ask for. The
 * application's threads stay where they are.
 *
 * Their naps may be longer than they ask for. Go's monitor thread sleeps 20 us at
 * a time as long as any thread is in a system call, so with more ranks than
 * cores it takes the cores from those who would do the work. */
#include <link.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "nv.h"

/* A set of processors; the kernel's largest number is 8192. */
struct cpus {
	unsigned long bits[8192 / (8 * sizeof(unsigned long))];
};

#define SET(c) ((cpu_set_t *)(c)->bits)
#define SIZE sizeof(struct cpus)

/* Where the runtime's threads run; empty: where their creator does. Written
 * before the first of them is created. */
static struct cpus elsewhere;
static bool leave;

/* How much longer a thread of the runtime may sleep than it asks for, in ns. It
 * is a bound for what depends on such naps: a goroutine that waits for the
 * processor (a P) of a thread in a system call, when there is no other. */
#define NAP (2ul * 1000 * 1000)

/* The runtime's code, once it is loaded. */
static uintptr_t code, code_end;
static _Atomic bool loading;

/* This thread is the runtime's, and so are those that it creates. */
static __thread bool own __attribute__((tls_model("initial-exec")));

/* read_small reads a small file; false if there is none. */
static bool read_small(const char *name, char *text, size_t n)
{
	int fd = REAL(open)(name, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : REAL(read)(fd, text, n - 1);

	if (fd >= 0)
		REAL(close)(fd);
	text[got < 0 ? 0 : got] = '\0';
	return got > 0;
}

/* siblings are the processors that are one core with cpu. */
static void siblings(int cpu, struct cpus *core)
{
	char name[96], text[256];
	int first, last, n;

	memset(core, 0, sizeof *core);
	CPU_SET_S(cpu, SIZE, SET(core));
	snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
	if (!read_small(name, text, sizeof text))
		return;
	for (char *p = text; sscanf(p, "%d%n", &first, &n) == 1; p += *p == ',') {
		p += n;
		last = first;
		if (sscanf(p, "-%d%n", &last, &n) == 1)
			p += n;
		for (; first >= 0 && first <= last && first < 8192; first++)
			CPU_SET_S(first, SIZE, SET(core));
	}
}

/* A process above this one. */
struct ancestor {
	pid_t parent;
	uid_t user;
	char name[16];
};

static bool look_at(pid_t pid, struct ancestor *a)
{
	char name[64], text[1024];

	snprintf(name, sizeof name, "/proc/%d/status", (int)pid);
	if (!read_small(name, text, sizeof text))
		return false;
	const char *parent = strstr(text, "\nPPid:"), *user = strstr(text, "\nUid:");

	return sscanf(text, "Name: %15s", a->name) == 1 && parent != NULL && user != NULL &&
	       sscanf(parent, "\nPPid: %d", &a->parent) == 1 && sscanf(user, "\nUid: %*u %u", &a->user) == 1;
}

/* others finds processors that are not of core, those of the nearest ancestor
 * that has any. Not above `nvmecr run`, which may have been started on one core
 * on purpose, and not above the daemon of a batch system. */
static bool others(const struct cpus *core, struct cpus *wide)
{
	struct ancestor a;
	struct cpus rest;

	for (pid_t pid = getppid(); pid > 1 && look_at(pid, &a); pid = a.parent) {
		if (a.user != geteuid() && a.user != 0)
			return false;
		if (sched_getaffinity(pid, SIZE, SET(wide)) != 0)
			return false;
		CPU_AND_S(SIZE, SET(&rest), SET(wide), SET(core));
		CPU_XOR_S(SIZE, SET(wide), SET(wide), SET(&rest));
		if (CPU_COUNT_S(SIZE, SET(wide)) > 0)
			return true;
		if (a.user != geteuid() || strcmp(a.name, "nvmecr") == 0)
			return false;
	}
	return false;
}

/* granted says whether the job may have so many processors of this node. A
 * batch system that does not confine its jobs tells them at least. */
static bool granted(int count)
{
	const char *limit = nv_given("SLURM_CPUS_ON_NODE");

	return limit == NULL || count <= atoi(limit);
}

/* nv_choose_cpus is called before the runtime is loaded. */
void nv_choose_cpus(void)
{
	struct cpus now, core, both;

	atomic_store(&loading, true);
	leave = false;
	if (sched_getaffinity(0, SIZE, SET(&now)) != 0)
		return;
	int cpu = 0;

	while (cpu < 8192 && !CPU_ISSET_S(cpu, SIZE, SET(&now)))
		cpu++;
	siblings(cpu, &core);
	CPU_AND_S(SIZE, SET(&both), SET(&now), SET(&core));
	if (!CPU_EQUAL_S(SIZE, SET(&both), SET(&now)))
		return; /* there is more than one core: the scheduler finds the idle one */
	/* Another core, or else another thread of this one. */
	leave = (others(&core, &elsewhere) || others(&now, &elsewhere)) &&
		granted(CPU_COUNT_S(SIZE, SET(&elsewhere)) + CPU_COUNT_S(SIZE, SET(&now)));
}

static int find_code(struct dl_phdr_info *info, size_t size, void *start)
{
	uintptr_t end = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz > end)
			end = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
	if ((uintptr_t)start < info->dlpi_addr || (uintptr_t)start >= info->dlpi_addr + end)
		return 0;
	code = info->dlpi_addr;
	code_end = info->dlpi_addr + end;
	return 1;
}

/* nv_chosen_cpus is called when it is. Later on the linker must not be asked:
 * the thread that waits for ours may be in a constructor and hold its lock. */
void nv_chosen_cpus(void)
{
	dl_iterate_phdr(find_code, (void *)nv_rt.start);
	atomic_store(&loading, false);
}

/* nv_runtimes_thread says whether a thread that begins with start will be the
 * runtime's. MPI may create some of its own while the runtime calls it. */
bool nv_runtimes_thread(void *(*start)(void *))
{
	uintptr_t at = (uintptr_t)start;

	return own || (nv_state == NV_INSIDE && (atomic_load(&loading) || (at >= code && at < code_end)));
}

/* nv_runtimes says whether this thread is the runtime's, or in it. */
bool nv_runtimes(void)
{
	return own || nv_state == NV_INSIDE;
}

/* nv_settle_thread is the first thing that such a thread does. */
void nv_settle_thread(void)
{
	own = true;
	nv_state = NV_INSIDE; /* libraries that the runtime uses call what is interposed */
	prctl(PR_SET_NAME, NV_THREAD);
	prctl(PR_SET_TIMERSLACK, NAP);
	/* A cpuset may have become smaller: then it runs where it is. */
	if (leave)
		(void)sched_setaffinity(0, SIZE, SET(&elsewhere));
}

/* Libraries that the runtime uses take the process for theirs. They must not
 * flush its standard output, which in a forked child holds what the parent will
 * write as well, nor say what it is called in the system's log. */

NV_EARLY_CODE int nv_fflush(FILE *stream)
{
	return own && (stream == NULL || stream == *nv_standard_stream(STDOUT_FILENO)) ? 0 : REAL(fflush)(stream);
}

void nv_openlog(const char *name, int options, int facility)
{
	if (!own)
		REAL(openlog)(name, options, facility);
}
