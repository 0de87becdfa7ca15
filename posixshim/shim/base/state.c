/* What all parts of the library look at: variables, without a function. Each is written by one part,
 * which its declaration in nv.h names. */
#include "nv.h"

/* ---- the mount: route.c ---- */

NV_EARLY bool nv_mounted;
NV_EARLY const char *nv_mount;
NV_EARLY const char *nv_view;

/* ---- descriptors: descriptors.c ---- */

NV_LARGE _Atomic nv_handle nv_fds[NV_FDS];
NV_EARLY _Atomic unsigned nv_ours_end;

/* ---- the runtime: runtime.c ---- */

struct nv_runtime nv_rt;
_Atomic int nv_load_result = LOAD_NONE;
__thread enum nv_state nv_state __attribute__((tls_model("initial-exec")));
__thread char nv_outside[NV_PATH] __attribute__((tls_model("initial-exec")));

/* ---- other processes: remote.c ---- */

/* The server of calls that do not begin at an open file; 0 is this process. */
_Atomic int nv_home;

/* What came with the answer to open. */
__thread int nv_remote_descriptor __attribute__((tls_model("initial-exec"))) = -1;
