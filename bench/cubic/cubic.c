/*
 * A library to preload into a peer, so that its TCP sockets have the congestion
 * control that ours have: what is compared then are programs, not the setting
 * of the system. It says nothing where the kernel has no cubic.
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
