// Package hosts makes hosts for tests: on this machine, each with network, process, host name and mount namespaces of its own. What tells
// real hosts apart differs between them: name, address, machine id, boot id, process numbers, /tmp and /dev/shm. Everything else
// of the machine's files they share, as a cluster does.
//
//	host n1          host n2          host n3
//	eth0 10.77.0.1   eth0 10.77.0.2   eth0 10.77.0.3
//	   |                |                |
//	   n1               n2               n3          links that Cut and Join set down and up
//	   +---------- bridge, in a network namespace of its own
//
// Limit gives a host a link with a rate and a delay in the place of one that is as fast as the machine.
//
// A host is as alive as its first process: Kill ends that, and with it the kernel ends all others of the host. The first process
// ends by itself when the test's process does, however that happens, so nothing is left behind.
//
// Launchers start commands on other hosts by Agent, which is to them what ssh is: it carries no environment, and its commands
// are the user's. It does not go by the links, so it reaches a host that is cut off.
//
// It takes root, and programs of util-linux and iproute2.
package hosts
