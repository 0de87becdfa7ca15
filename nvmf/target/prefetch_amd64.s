#include "textflag.h"

// func prefetch(p *byte, n uintptr)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX
	ADDQ AX, CX

line:
	CMPQ       AX, CX
	JAE        done
	PREFETCHT1 (AX)
	ADDQ       $64, AX
	JMP        line

done:
	RET
