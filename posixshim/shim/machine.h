/* Where a machine keeps what a signal has interrupted. */
#ifndef NV_MACHINE_H
#define NV_MACHINE_H

#include <ucontext.h>

#if defined(__x86_64__)
#define NV_COUNTER(context) (context)->uc_mcontext.gregs[REG_RIP]
#define NV_STACK(context) (context)->uc_mcontext.gregs[REG_RSP]
#elif defined(__aarch64__)
#define NV_COUNTER(context) (context)->uc_mcontext.pc
#define NV_STACK(context) (context)->uc_mcontext.sp
#else
#error "where does this machine keep the program counter and the stack pointer?"
#endif

#endif
