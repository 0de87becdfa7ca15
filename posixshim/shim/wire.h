/*
 * What crosses between the shim and the Go runtime besides numbers. The Go
 * side of these structures is posixshim/wire.go; a test compares the layouts.
 */
#ifndef NV_WIRE_H
#define NV_WIRE_H

#include <stdint.h>

/* The type of nv_own_descriptor, and what the runtime says by it: that it is
 * about to close fd; that it has opened it; that it is about to open descriptors
 * whose numbers it cannot change; that it has; that fd is one of them. Only one
 * thread does the second and third last. */
typedef int nv_own(int fd, int own);
enum { NV_OWN_DROP, NV_OWN_HOLD, NV_OWN_ASIDE, NV_OWN_BESIDE, NV_OWN_STAY };

/* The runtime's answer when a path leads out of the mount: the path to go on
 * with has been put into the caller's buffer of NV_PATH bytes. */
#define NV_OUTSIDE (-4096)
#define NV_PATH 4096

/* The runtime's answer when another process has the partition and serves: its
 * number, in hexadecimal digits, is in that buffer. */
#define NV_REDIRECT (-4097)

/* The answer of remote.c when the process that serves has ended. */
#define NV_GONE (-4098)

/* The runtime's answer when a file would become larger than RLIMIT_FSIZE: EFBIG,
 * and a signal for the calling thread. */
#define NV_FILE_TOO_LARGE (-4099)

/* With this bit, the handle of a place is not that of a directory: the file
 * itself is meant, by the name it was opened with, whatever the path is. */
#define NV_ITSELF (INT64_C(1) << 62)

/* A process can have so many mounts. Handles below that are their numbers, and mean their roots. */
#define NV_MOUNTS 4

/* What the runtime's map is asked for. */
#define NV_MAP_SHARED 1
#define NV_MAP_WRITE 2

/* What it answers beside the descriptor: a private mapping is to be unmapped by unmap, as shared ones are. */
#define NV_MAP_KEPT (INT64_C(1) << 32)

#endif
