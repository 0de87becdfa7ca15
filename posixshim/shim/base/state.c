/* Variables that all folders read. Each is written only by the file that its heading here names. Those that are not atomic are
 * written before main, or, nv_rt, before nv_load_result becomes LOAD_DONE. */
#include "nv.h"

/* ---- route/route.c ---- */

NV_EARLY bool nv_mounted;
NV_EARLY const char *nv_mount;
NV_EARLY const char *nv_view;

/* ---- base/slots.c, files/descriptors.c ---- */

NV_LARGE _Atomic nv_handle nv_fds[NV_FDS];
NV_EARLY _Atomic unsigned nv_fds_end;

/* ---- runtime/runtime.c ---- */

struct nv_runtime nv_rt;
_Atomic int nv_load_result = LOAD_NONE;
__thread enum nv_state nv_state __attribute__((tls_model("initial-exec")));
__thread char nv_outside[NV_PATH] __attribute__((tls_model("initial-exec")));

/* The number of nvmecr serve; 0: it is not known. Set when the runtime has been loaded, and before a child is made. */
_Atomic uint64_t nv_host;

/* ---- route/redirect.c, files/inherit.c ---- */

/* The server for calls that do not begin at an open file; 0 is this process. */
_Atomic int nv_default_server;

/* ---- remote/remote.c ---- */

/* The descriptor in the last reply of a server; -1: none. */
__thread int nv_remote_descriptor __attribute__((tls_model("initial-exec"))) = -1;
