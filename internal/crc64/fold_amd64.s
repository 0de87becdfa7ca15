#include "textflag.h"

// Powers of x modulo the polynomial, reflected, in pairs: what the low and the
// high half of 16 bytes are multiplied with to lie 2048 (a stripe), 256 (a
// register) and 128 bits further on; then what divides 128 bits by the
// polynomial (Barrett): floor(x^128/P) and P. TestConstants computes them.
DATA ·powers+0(SB)/8, $0x37ccd3e14069cabc
DATA ·powers+8(SB)/8, $0xa043808c0f782663
DATA ·powers+16(SB)/8, $0xb0bc2e589204f500
DATA ·powers+24(SB)/8, $0xe1e0bb9d45d7a44c
DATA ·powers+32(SB)/8, $0xeadc41fd2ba3d420
DATA ·powers+40(SB)/8, $0x21e9761e252621ac
DATA ·powers+48(SB)/8, $0x27ecfa329aef9f77
DATA ·powers+56(SB)/8, $0x34d926535897936b
GLOBL ·powers(SB), RODATA|NOPTR, $64

// FOLD moves a register of bytes on and adds what lies there.
#define FOLD(acc, low, at) \
	VPCLMULQDQ $0x00, Y8, acc, low \
	VPCLMULQDQ $0x11, Y8, acc, acc \
	VPXOR      at(SI), low, low    \
	VPXOR      low, acc, acc

// JOIN does it with the next register.
#define JOIN(acc, next) \
	VPCLMULQDQ $0x00, Y8, acc, Y9  \
	VPCLMULQDQ $0x11, Y8, acc, acc \
	VPXOR      Y9, next, next      \
	VPXOR      acc, next, next

// func fold(state uint64, p *byte, n int) uint64
TEXT ·fold(SB), NOSPLIT, $0-32
	MOVQ           p+8(FP), SI
	MOVQ           n+16(FP), CX
	VBROADCASTI128 ·powers(SB), Y8
	VMOVQ          state+0(FP), X0
	VPXOR          0(SI), Y0, Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	VMOVDQU        128(SI), Y4
	VMOVDQU        160(SI), Y5
	VMOVDQU        192(SI), Y6
	VMOVDQU        224(SI), Y7
	JMP            check

next:
	FOLD(Y0, Y9, 0)
	FOLD(Y1, Y10, 32)
	FOLD(Y2, Y11, 64)
	FOLD(Y3, Y12, 96)
	FOLD(Y4, Y9, 128)
	FOLD(Y5, Y10, 160)
	FOLD(Y6, Y11, 192)
	FOLD(Y7, Y12, 224)

check:
	ADDQ $256, SI
	DECQ CX
	JNZ  next

	VBROADCASTI128 ·powers+16(SB), Y8
	JOIN(Y0, Y1)
	JOIN(Y1, Y2)
	JOIN(Y2, Y3)
	JOIN(Y3, Y4)
	JOIN(Y4, Y5)
	JOIN(Y5, Y6)
	JOIN(Y6, Y7)

	// The first half of a register to the second.
	VMOVDQU      ·powers+32(SB), X8
	VEXTRACTI128 $1, Y7, X6
	VPCLMULQDQ   $0x00, X8, X7, X9
	VPCLMULQDQ   $0x11, X8, X7, X7
	VPXOR        X9, X6, X6
	VPXOR        X7, X6, X6

	// 16 bytes times x^64, as the remainder wants it.
	VPCLMULQDQ $0x10, X8, X6, X0
	VPSRLDQ    $8, X6, X6
	VPXOR      X6, X0, X0

	// The quotient, and what it leaves.
	VMOVDQU    ·powers+48(SB), X8
	VPCLMULQDQ $0x00, X8, X0, X1
	VPSLLDQ    $8, X1, X2
	VPCLMULQDQ $0x10, X8, X1, X1
	VPXOR      X2, X1, X1
	VPXOR      X0, X1, X1
	VPEXTRQ    $1, X1, AX
	MOVQ       AX, ret+24(FP)
	VZEROUPPER
	RET
