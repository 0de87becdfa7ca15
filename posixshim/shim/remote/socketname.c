/* The names of the sockets of shared files. A name says which open file of which process a descriptor is. posixshim/inherit.go
 * makes the sockets. */
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "remote.h"
#include "kernel.h"
#include "nv.h"

/* nv_shared_handle returns the handle of the file whose socket fd is; 0 if fd is no such socket. */
NV_EARLY_CODE nv_handle nv_shared_handle(int fd)
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

	/* A server does not serve other users (set-user-ID programs). To them the descriptor is not ours. */
	length = sizeof peer;
	if (nv_kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
	    peer.uid != (uid_t)nv_kernel(SYS_geteuid))
		return 0;
	int server = nv_add_server(number);

	return server == 0 ? NV_LOST : nv_remote((nv_handle)h, server);
}

static bool has_prefix(const struct sockaddr_un *name, socklen_t length)
{
	return length > offsetof(struct sockaddr_un, sun_path) + sizeof NV_SOCKET && name->sun_family == AF_UNIX &&
	       memcmp(name->sun_path, "\0" NV_SOCKET, sizeof NV_SOCKET) == 0;
}

/* nv_is_sharing_socket says whether fd is a socket of a shared file, or a connection to a server: one of its ends has a name of
 * ours. */
bool nv_is_sharing_socket(int fd)
{
	struct sockaddr_un name;
	socklen_t local = sizeof name, remote = sizeof name;

	return (getsockname(fd, (struct sockaddr *)&name, &local) == 0 && has_prefix(&name, local)) ||
	       (getpeername(fd, (struct sockaddr *)&name, &remote) == 0 && has_prefix(&name, remote));
}
