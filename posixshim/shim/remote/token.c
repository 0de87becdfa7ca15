/* The names of the sockets by which processes have files of each other, which say whose
 * file a descriptor stands for. posixshim/inherit.go makes them. */
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "remote.h"
#include "kernel.h"
#include "nv.h"

/* nv_token says which open file of which process a descriptor stands for; 0
 * for any other descriptor. */
NV_EARLY_CODE nv_handle nv_token(int fd)
{
	struct sockaddr_un name;
	socklen_t length = sizeof name;
	char text[sizeof name.sun_path + 1];
	unsigned long long number, h;

	if (nv_kernel(SYS_getsockname, fd, &name, &length) != 0 || name.sun_family != AF_UNIX ||
	    length <= offsetof(struct sockaddr_un, sun_path) + 1 || name.sun_path[0] != '\0')
		return 0;
	length -= (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1;
	memcpy(text, name.sun_path + 1, length);
	text[length] = '\0';
	if (sscanf(text, NV_SOCKET "%16llx:%16llx", &number, &h) != 2)
		return 0;
	struct ucred peer;

	/* To another user's program, which is not served, it is what it is to one without this library. */
	length = sizeof peer;
	if (nv_kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
	    peer.uid != (uid_t)nv_kernel(SYS_geteuid))
		return 0;
	int server = nv_add_server(number);

	return server == 0 ? NV_LOST : nv_remote((nv_handle)h, server);
}

static bool ours(const struct sockaddr_un *name, socklen_t length)
{
	return length > offsetof(struct sockaddr_un, sun_path) + sizeof NV_SOCKET && name->sun_family == AF_UNIX &&
	       memcmp(name->sun_path, "\0" NV_SOCKET, sizeof NV_SOCKET) == 0;
}

/* nv_named says that a descriptor is a socket by which processes have files of
 * each other: one of its ends has such a name. */
bool nv_named(int fd)
{
	struct sockaddr_un name;
	socklen_t near = sizeof name, far = sizeof name;

	return (getsockname(fd, (struct sockaddr *)&name, &near) == 0 && ours(&name, near)) ||
	       (getpeername(fd, (struct sockaddr *)&name, &far) == 0 && ours(&name, far));
}
