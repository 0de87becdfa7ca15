/* Values that the C library and the Go runtime exchange. Package posixshim and cmd/libnvmecr have them as constants. */
#ifndef NV_WIRE_H
#define NV_WIRE_H

#include <stdint.h>

/* The type of nv_own_descriptor, by which the runtime tells the shim of the descriptors that it uses itself. own is one of:
 *
 *   NV_OWN_CLOSING      the runtime is about to close fd
 *   NV_OWN_OPENED       the runtime has opened fd; the shim may move it to another number
 *   NV_OWN_RESERVE      the runtime is about to open descriptors whose numbers cannot be changed; fd means nothing
 *   NV_OWN_UNRESERVE    it has opened them
 *   NV_OWN_KEEP_NUMBER  fd is one of those
 *
 * One thread at a time is between NV_OWN_RESERVE and NV_OWN_UNRESERVE. */
typedef int nv_own(int fd, int own);
enum { NV_OWN_CLOSING, NV_OWN_OPENED, NV_OWN_RESERVE, NV_OWN_UNRESERVE, NV_OWN_KEEP_NUMBER };

/* Results of the runtime's functions that are no errno. */
#define NV_OUTSIDE (-4096)        /* the path leads out of the mount, to the path in the caller's buffer of NV_PATH bytes */
#define NV_REDIRECT (-4097)       /* another process has the partition; its number is in that buffer, in hexadecimal digits */
#define NV_GONE (-4098)           /* the server has ended, or is ending, and has not made the call */
#define NV_FILE_TOO_LARGE (-4099) /* the file would exceed RLIMIT_FSIZE: EFBIG, and SIGXFSZ for the calling thread */

#define NV_PATH 4096 /* bytes of a path, with its NUL */

/* With this bit in nv_path_at.dir the call is about the open file itself, by the name it was opened with. The path is
 * ignored. */
#define NV_ITSELF (INT64_C(1) << 62)

/* The bits of an inode number in which a file of the mount and that file in the view are the same (posixshim.ViewShift). */
#define NV_VIEW_INO ((UINT64_C(1) << 40) - 1)

/* The most mounts of a process. Handles below NV_MOUNTS are numbers of mounts. */
#define NV_MOUNTS 4

/* What rt_map is asked for. */
#define NV_MAP_SHARED 1
#define NV_MAP_WRITE 2

/* A bit of the result of rt_map: the runtime keeps the descriptor, and rt_unmap has to be called for a private mapping too. */
#define NV_MAP_KEPT (INT64_C(1) << 32)

#endif
