/*
 * A library to be preloaded into a peer. It gives the peer's TCP sockets the same congestion
 * control as nvmecr's sockets. A comparison then does not depend on the default of the system.
 * On a kernel without cubic the library changes nothing.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
	static int (*next)(int, int, int);
	int fd;

	if (!next)
		next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	fd = next(domain, type, protocol);
	if (fd >= 0 && (domain == AF_INET || domain == AF_INET6))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	return fd;
}
