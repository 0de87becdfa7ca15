/* Wrappers that end in a jump, without a frame of their own: their real functions look at the caller's address, or return
 * twice. */
#ifndef NV_MACHINE_H
#define NV_MACHINE_H

#if defined(__x86_64__)
#define NV_JUMP_TO(chooser)                                                                                  \
	"	endbr64\n	push %rdi\n	push %rsi\n	push %rdx\n	.cfi_adjust_cfa_offset 24\n"     \
	"	call " chooser "\n"                                                                           \
	"	pop %rdx\n	pop %rsi\n	pop %rdi\n	.cfi_adjust_cfa_offset -24\n	jmp *%rax\n"
#elif defined(__aarch64__)
#define NV_JUMP_TO(chooser)                                                                                  \
	"	stp x29, x30, [sp, #-48]!\n	.cfi_adjust_cfa_offset 48\n	stp x0, x1, [sp, #16]\n"       \
	"	str x2, [sp, #32]\n	bl " chooser "\n	mov x16, x0\n	ldp x0, x1, [sp, #16]\n"         \
	"	ldr x2, [sp, #32]\n	ldp x29, x30, [sp], #48\n	.cfi_adjust_cfa_offset -48\n	br x16\n"
#else
#error "this machine needs an NV_JUMP_TO"
#endif

/* NV_JUMP defines the function name, of up to three parameters. It calls chooser with them and jumps to the function that
 * chooser returns. That finds the stack and the parameters as the caller left them. Assembly guarantees this; a tail call
 * in C depends on the compiler's optimizations. */
#define NV_JUMP(name, chooser)                                                                               \
	__asm__("	.pushsection .text\n	.globl " name "\n	.type " name ", %function\n" name ":\n"    \
		"	.cfi_startproc\n" NV_JUMP_TO(chooser) "	.cfi_endproc\n"                             \
		"	.size " name ", . - " name "\n	.popsection")

#endif
