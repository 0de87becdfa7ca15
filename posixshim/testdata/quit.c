/* Ends by _exit; in a signal handler, if there is a first argument ("small": on a small stack); or by executing another program
 * ("exec"). At that time a mapping of the file before the last one has changed, and the last file is open. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void quit(int signum)
{
	(void)signum;
	_exit(0);
}

int main(int argc, char **argv)
{
	int mapped = open(argv[argc - 2], O_RDWR | O_CREAT, 0600);
	int written = open(argv[argc - 1], O_WRONLY | O_CREAT, 0600);

	if (ftruncate(mapped, 7) != 0 || write(written, "written", 7) != 7)
		_exit(1);
	char *p = mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);

	if (p == MAP_FAILED)
		_exit(2);
	memcpy(p, "mapped\n", 7);
	if (argc > 3 && strcmp(argv[1], "exec") == 0) {
		fcntl(mapped, F_SETFD, FD_CLOEXEC);
		fcntl(written, F_SETFD, FD_CLOEXEC);
		execl("/bin/true", "true", (char *)NULL);
		return 4;
	}
	if (argc > 3) {
		static char buffer[16 << 10];
		stack_t small = {.ss_sp = buffer, .ss_size = sizeof buffer};
		struct sigaction act = {.sa_handler = quit, .sa_flags = SA_ONSTACK};

		if (strcmp(argv[1], "small") == 0)
			sigaltstack(&small, NULL);
		sigaction(SIGUSR1, &act, NULL);
		raise(SIGUSR1);
		return 3;
	}
	_exit(0);
}
