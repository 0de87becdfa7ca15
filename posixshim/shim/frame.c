/* Where the application's handlers run.
 *
 * The kernel brings all signals on the alternate stack (stacks.c). A handler that has
 * not asked for one expects to be on the stack that it interrupts: collectors of garbage
 * look there for what the thread uses, schedulers of coroutines exchange it. So
 * nv_signalled does what the kernel would have done. It puts a frame on that stack,
 *
 *	interrupted stack pointer
 *	128 bytes  the red zone
 *	           state of the floating-point unit, as long as the processor's, aligned to 64
 *	128 bytes  siginfo_t
 *	304 bytes  ucontext_t
 *	  8 bytes  where the handler returns to: the C library's call of rt_sigreturn
 *
 * which is a copy of what the kernel has put on the alternate one, and lets its own
 * frame return to the beginning of the handler. The handler's return ends at the
 * interrupted place, by the copy.
 *
 * (Linux, arch/x86/kernel/signal_64.c: x64_setup_rt_frame; arch/x86/include/uapi/asm/
 * sigcontext.h.) On other machines handlers run on the alternate stack. */
#include <stddef.h>
#include <string.h>

#include "kernel.h"
#include "machine.h"
#include "nv.h"

#define AUTODISARM (1u << 31) /* in any handler there is no alternate stack; linux/signal.h */

static bool handling(uintptr_t here);

/* nv_in_handler says that a signal handler may run. It must not call into Go: on an
 * alternate stack Go's stack would lie there, but its goroutines' do not, so the
 * kernel would put the next signal's frame over both; and Go allocates memory, which
 * a handler may have interrupted. */
bool nv_in_handler(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	return nv_on_signal_stack(here) || handling(here);
}

/* nv_call_handler calls the application's handler. What a call has left for its caller,
 * who has not taken it yet, is still there afterwards, and an alternate stack that the
 * handler has set is not any more. */
void nv_call_handler(void (*handler)(int, siginfo_t *, void *), int signum, siginfo_t *info, void *context)
{
	int descriptor = nv_far_descriptor;
	const stack_t *stack = &((ucontext_t *)context)->uc_stack;
	size_t n = strlen(nv_outside) + 1;
	char outside[n];

	if ((unsigned)stack->ss_flags & AUTODISARM)
		nv_doubt_stack(); /* the handler may jump out */
	memcpy(outside, nv_outside, n);
	handler(signum, info, context); /* one without SA_SIGINFO has the kernel's arguments, too */
	memcpy(nv_outside, outside, n);
	nv_far_descriptor = descriptor;
	nv_remember_stack(stack);
}

#if defined(__x86_64__)

#define RED_ZONE 128
#define FLAGS ((1 << 8) | (1 << 10) | (1 << 16)) /* that a handler begins without: TF, DF, RF */

/* The kernel's, whose mask is shorter than the C library's. */
struct frame {
	void *returns_to;
	char context[offsetof(ucontext_t, uc_sigmask) + 8];
	siginfo_t info;
};

_Static_assert(sizeof(struct frame) == 8 + 304 + 128, "the kernel's frame of a signal");

/* The state of the floating-point unit: FXSAVE's, and where that says so XSAVE's. */
#define CONTROL 0
#define STATUS 2
#define TAGS 4
#define MXCSR 24
#define MAGIC 464
#define SIZE 468 /* of all */
#define LEGACY 512
#define PRESENT LEGACY /* a bit for each part */

#define EXTENDED UINT32_C(0x46505853)
#define PROTECTION_KEYS (UINT64_C(1) << 9)

static bool extended(const char *state)
{
	uint32_t magic;

	memcpy(&magic, state + MAGIC, sizeof magic);
	return magic == EXTENDED;
}

static size_t state_size(const char *state)
{
	uint32_t size;

	memcpy(&size, state + SIZE, sizeof size);
	return extended(state) ? size : LEGACY;
}

/* initialise makes a state that of a handler's beginning. */
static void initialise(char *state)
{
	const uint16_t control = 0x37f, status = 0;
	const uint32_t mxcsr = 0x1f80;
	uint64_t present;

	memcpy(state + CONTROL, &control, sizeof control);
	memcpy(state + STATUS, &status, sizeof status);
	memcpy(state + MXCSR, &mxcsr, sizeof mxcsr);
	state[TAGS] = 0;
	if (!extended(state))
		return;
	memcpy(&present, state + PRESENT, sizeof present);
	present &= PROTECTION_KEYS; /* what is not present is as at the start */
	memcpy(state + PRESENT, &present, sizeof present);
}

static struct frame *copy_of(ucontext_t *context, const siginfo_t *info)
{
	char *from = (char *)context->uc_mcontext.fpregs;
	size_t n = state_size(from);
	uintptr_t state = ((uintptr_t)NV_STACK(context) - RED_ZONE - n) & ~(uintptr_t)63;
	struct frame *f = (struct frame *)(((state - sizeof *f) & ~(uintptr_t)15) - 8);

	memcpy((void *)state, from, n);
	f->returns_to = ((void **)context)[-1];
	memcpy(f->context, context, sizeof f->context);
	((ucontext_t *)f->context)->uc_mcontext.fpregs = (fpregset_t)state;
	f->info = *info;
	return f;
}

/* The frame of the outermost handler that is not on an alternate stack, with the state behind
 * it, and a sum of what is there; end is 0 if there is none. */
static __thread struct {
	uintptr_t begin, end;
	uint64_t sum;
} outermost __attribute__((tls_model("initial-exec")));

static uint64_t sum_of(uintptr_t begin, uintptr_t end)
{
	uint64_t sum = 0, word;

	for (; begin + sizeof word <= end; begin += sizeof word) {
		memcpy(&word, (const void *)begin, sizeof word);
		sum = (sum << 5 | sum >> 59) + word;
	}
	return sum;
}

/* readable asks the kernel, which looks at the mask before it dislikes the rest: a probe would
 * end the process where SIGSEGV is blocked, as handlers may have it. */
static bool readable(uintptr_t begin, uintptr_t end)
{
	for (; begin < end; begin = (begin | 4095) + 1)
		if (nv_kernel(SYS_rt_sigprocmask, -1, begin, NULL, 8) == -EFAULT)
			return false;
	return true;
}

/* stands says whether the frame is still there. A handler that has left by siglongjmp, an
 * exception or setcontext has left it to be written over by calls: no return address
 * or whatever else they put there may be overlooked. */
static bool stands(void)
{
	return readable(outermost.begin, outermost.end) && sum_of(outermost.begin, outermost.end) == outermost.sum;
}

/* handling says whether a handler is what runs here, which is below its frame. */
static bool handling(uintptr_t here)
{
	if (__builtin_expect(outermost.end != 0, 0) && (here >= outermost.end || !stands()))
		outermost.end = 0;
	return outermost.end != 0;
}

/* nv_begin_handler is where nv_signalled returns to, and then returns by the frame; and it
 * is called with the kernel's own, which is laid out like ours, on a thread that has no
 * alternate stack. Another one may interrupt it anywhere, and leaves outermost as it was. */
void nv_begin_handler(int signum, siginfo_t *info, void *context, void (*handler)(int, siginfo_t *, void *))
{
	bool first = !handling((uintptr_t)__builtin_frame_address(0));
	__typeof__(outermost) before = outermost;

	if (first) {
		const char *state = (const char *)((ucontext_t *)context)->uc_mcontext.fpregs;
		uintptr_t begin = (uintptr_t)context - offsetof(struct frame, context);
		uintptr_t end = (uintptr_t)state + state_size(state);

		outermost.begin = begin;
		outermost.sum = sum_of(begin, end);
		atomic_signal_fence(memory_order_seq_cst);
		outermost.end = end;
	}
	nv_call_handler(handler, signum, info, context);
	if (first)
		outermost = before;
}

/* nv_moves says whether a handler runs on another stack than this one. In the middle of
 * the runtime it must not: that is where the stack of a goroutine may be. */
bool nv_moves(const ucontext_t *context, const struct sigaction *act)
{
	return !nv_runtimes() && nv_on_signal_stack((uintptr_t)__builtin_frame_address(0)) &&
	       !nv_on_signal_stack((uintptr_t)NV_STACK(context)) &&
	       !((act->sa_flags & SA_ONSTACK) && nv_has_own_signal_stack());
}

/* nv_push lets a handler begin where a context is, when nv_signalled returns. */
void nv_push(const struct sigaction *act, int signum, const siginfo_t *info, ucontext_t *context, const sigset_t *mask)
{
	struct frame *f = copy_of(context, info);
	greg_t *g = context->uc_mcontext.gregs;

	if ((unsigned)context->uc_stack.ss_flags & AUTODISARM)
		context->uc_stack = (stack_t){.ss_flags = SS_DISABLE};
	initialise((char *)context->uc_mcontext.fpregs);
	memcpy(&context->uc_sigmask, mask, 8);
	g[REG_RIP] = (greg_t)nv_begin_handler;
	g[REG_RSP] = (greg_t)f;
	g[REG_RDI] = signum;
	g[REG_RSI] = (greg_t)&f->info;
	g[REG_RDX] = (greg_t)f->context;
	g[REG_RCX] = (greg_t)act->sa_sigaction;
	g[REG_EFL] &= ~(greg_t)FLAGS;
}

#else

static bool handling(uintptr_t here)
{
	(void)here;
	return false;
}

void nv_begin_handler(int signum, siginfo_t *info, void *context, void (*handler)(int, siginfo_t *, void *))
{
	nv_call_handler(handler, signum, info, context);
}

bool nv_moves(const ucontext_t *context, const struct sigaction *act)
{
	(void)context;
	(void)act;
	return false;
}

void nv_push(const struct sigaction *act, int signum, const siginfo_t *info, ucontext_t *context, const sigset_t *mask)
{
	(void)act;
	(void)signum;
	(void)info;
	(void)context;
	(void)mask;
}

#endif
