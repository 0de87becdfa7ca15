/* Loading, entering and leaving the Go runtime.
 *
 * The first thread that needs the runtime loads it (load_once); other threads wait for that. A thread is in the runtime from
 * nv_enter to nv_leave. Any number of threads may be in it at once: the shim takes no lock for that. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv.h"

extern const unsigned short nv_real_signal[];
extern const unsigned nv_real_signal_count;

static const char runtime_names[][NV_NAME] = {NV_RUNTIME_NAMES};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* nv_resolve_signal_calls looks up the real functions that a signal handler may call. Neither a handler nor a forked child of
 * several threads may enter the dynamic linker, whose lock may be taken. */
void nv_resolve_signal_calls(void)
{
	static _Atomic bool done;

	if (atomic_load(&done))
		return;
	for (unsigned i = 0; i < nv_real_signal_count; i++)
		nv_resolve_real(nv_real_signal[i]);
	for (int fd = 0; fd <= 2; fd++)
		nv_standard_stream(fd);
	atomic_store(&done, true);
}

/* have_library says whether the library soname, which defines symbol, has been loaded. */
static bool have_library(const char *symbol, const char *soname)
{
	if (dlsym(RTLD_DEFAULT, symbol) != NULL)
		return true;
	/* Python loads MPI with RTLD_LOCAL, and dlsym does not find it. */
	void *library = REAL(dlopen)(soname, RTLD_LAZY | RTLD_NOLOAD);

	if (library == NULL)
		return false;
	dlclose(library);
	return true;
}

/* flavour names the MPI library that the process has loaded. */
static const char *flavour(void)
{
	if (have_library("ompi_mpi_comm_world", "libmpi.so.40"))
		return "openmpi";
	if (have_library("MPII_Version_string", "libmpich.so.12"))
		return "mpich";
	return "plain";
}

/* runtime_path makes the path of a runtime, which lies beside this library. */
static bool runtime_path(char *path, size_t n, const char *name)
{
	Dl_info info;

	if (dladdr((void *)runtime_path, &info) == 0 || info.dli_fname == NULL)
		return false;
	const char *slash = strrchr(info.dli_fname, '/');
	int dir = slash == NULL ? 0 : (int)(slash + 1 - info.dli_fname);
	int length = snprintf(path, n, "%.*slibnvmecr-%s.so", dir, info.dli_fname, name);

	return length > 0 && (size_t)length < n;
}

/* nv_forget_runtime is called in a forked child of a process that had a runtime. The child has the memory of that runtime, but not
 * its threads, and Go cannot be loaded a second time. So servers make all calls of the child: its parent and, after that has
 * ended, nvmecr serve. */
void nv_forget_runtime(void)
{
	nv_forget_exit();
	atomic_store(&nv_load_result, LOAD_IN_PARENT);
	nv_state = NV_OUT;
}

static bool loading; /* read only by threads that are inside, while the runtime is loaded: by the thread that sets it */

/* nv_loading says whether the dynamic linker is loading the runtime in this call. */
bool nv_loading(void)
{
	return loading;
}

static int bind_runtime(void)
{
	char path[NV_PATH];
	const char *name = flavour();

	/* Programs of musl load this library too. musl does not have this function. */
	if (dlsym(RTLD_DEFAULT, "gnu_get_libc_version") == NULL) {
		nv_complain("files under %s cannot be used: this program is linked with another C library than glibc", nv_mount);
		return ENOSYS;
	}
	if (!runtime_path(path, sizeof path, name))
		return ENAMETOOLONG;
	if (REAL(access)(path, F_OK) != 0 && !runtime_path(path, sizeof path, "plain"))
		return ENAMETOOLONG;
	loading = true;
	void *library = REAL(dlopen)(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	loading = false;
	if (library == NULL) {
		nv_complain("files under %s cannot be used: %s; build or install nvmecr completely", nv_mount, dlerror());
		return ELIBACC;
	}
	void **slot = (void **)&nv_rt;

	for (size_t i = 0; i < sizeof runtime_names / sizeof *runtime_names; i++) {
		slot[i] = dlsym(library, runtime_names[i]);
		if (slot[i] == NULL) {
			nv_complain("files under %s cannot be used: %s is of another version than libnvmecr.so (no %s)",
				    nv_mount, path, runtime_names[i]);
			return ELIBACC;
		}
	}
	size_t length;
	const char *environment = nv_environment(&length);

	/* The runtime prints its own errors. */
	int result = (int)-nv_rt.start(nv_mount, environment, length, nv_own_descriptor);

	nv_host = result == 0 ? (uint64_t)nv_rt.host_server() : 0;
	return result;
}

/* load is called with signals blocked: Go's threads inherit the mask. */
static void load(void)
{
	nv_install_fault_handlers();
	nv_detect_fork();
	nv_reserve_low();
	int result = bind_runtime();

	nv_free_low();
	atomic_store(&nv_load_result, result);
}

/* ensure_loaded loads the runtime unless it is loaded. It sets errno if that fails. */
static bool ensure_loaded(void)
{
	int result = nv_loaded() ? 0 : nv_within_limits();

	if (result == 0) {
		pthread_once(&load_once, load);
		result = atomic_load(&nv_load_result);
	}
	errno = result;
	return result == LOAD_DONE;
}

/* first_enter is called before a thread's first call of the runtime. The thread cannot be cancelled in it. */
static bool first_enter(void)
{
	int cancel;

	/* A child of vfork would start Go's threads, which would end with it. */
	if (nv_needs_server() || (!nv_loaded() && !nv_owns_memory())) {
		static _Atomic bool told;

		if (!atomic_exchange(&told, true))
			nv_complain(!nv_needs_server() ? "process %d was made by vfork and cannot use %s before exec"
				    : nv_default_server != 0 ? "process %d has a file of %s from its parent that could not be shared with it"
				    : "process %d cannot use %s: its parent has ended, and there is no nvmecr serve of its run",
				    (int)getpid(), nv_mount);
		errno = EIO;
		return false;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	nv_state = NV_INSIDE;
	nv_signal_stack();
	bool ready = ensure_loaded();

	nv_state = ready ? NV_READY : NV_OUT;
	pthread_setcancelstate(cancel, NULL);
	return ready;
}

/* nv_enter is called before a function of the runtime. If it returns false, with errno, that must not be called. From
 * nv_enter to nv_leave every interposed call of this thread is the real one, and the thread takes no signals and cannot be
 * cancelled. */
bool nv_enter(struct nv_visit *visit)
{
	visit->errno_before = errno;
	visit->state_before = NV_READY;
	if (__builtin_expect(nv_must_not_enter(), 0))
		return false;
	nv_block_signals(&visit->mask_before);
	if (__builtin_expect(nv_state != NV_READY, 0) && !first_enter()) {
		nv_unblock_signals(visit->mask_before);
		return false;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &visit->cancel_before);
	nv_state = NV_INSIDE;
	return true;
}

/* nv_leave ends what nv_enter has begun. It turns the runtime's -errno into -1 and errno. */
int64_t nv_leave(struct nv_visit *visit, int64_t result)
{
	nv_state = visit->state_before;
	pthread_setcancelstate(visit->cancel_before, NULL);
	nv_unblock_signals(visit->mask_before);
	if (result < 0) {
		nv_await_exit();
		return result == NV_FILE_TOO_LARGE ? nv_file_too_large() : nv_error((int)-result);
	}
	errno = visit->errno_before;
	return result;
}

/* nv_leave_at is nv_leave for a call on a path. Before signals are let in, it stores in at whether the path is outside, and
 * the descriptor that a server has sent: a call of a signal handler overwrites the variables of the thread. */
int64_t nv_leave_at(struct nv_visit *visit, int64_t result, struct nv_path_at *at)
{
	at->descriptor = nv_remote_descriptor;
	if (result == NV_OUTSIDE) {
		at->outside = true;
		result = -EXDEV;
	} else if (result == NV_REDIRECT) {
		result = -EBUSY;
	} else if (result == NV_GONE) {
		result = -EIO;
	}
	return nv_leave(visit, result);
}

/* nv_mpi_ready is called when the application's MPI_Init has returned. */
void nv_mpi_ready(void)
{
	struct nv_visit visit;
	int saved = errno;

	if (nv_mounted && !nv_needs_server() && nv_enter(&visit))
		nv_leave(&visit, nv_rt.mpi_init());
	errno = saved;
}

/* nv_mpi_ending is called before the application's MPI_Finalize. */
void nv_mpi_ending(void)
{
	struct nv_visit visit;
	int saved = errno;

	if (nv_loaded() && nv_enter(&visit))
		nv_leave(&visit, nv_rt.mpi_finalize());
	errno = saved;
}
