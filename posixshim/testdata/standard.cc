// Redirects its standard output, error or input to the file argv[2] in the way argv[1], and then uses the stream in all ways, one
// after another.
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void keeps_writing();
int keeps_reading();

// Makes a direct system call, like programs without the C library.
static long raw_write(int fd, const char *text)
{
	long result;

	asm volatile("syscall" : "=a"(result) : "a"(SYS_write), "D"(fd), "S"(text), "d"(strlen(text)) : "rcx", "r11", "memory");
	return result;
}

static void write_all()
{
	std::cout << "std::cout " << 1 << "\n";
	printf("printf\n");
	keeps_writing();
	std::cout << "again, " << std::flush;
	raw_write(1, "a system call, ");
	if (write(1, "write, ", 7) != 7)
		perror("write");
	raw_write(1, "another\n");
	puts("puts");
	fflush(stdout);
	std::cout << "good " << std::cout.good() << std::endl;
	std::cerr << lseek(1, 0, SEEK_CUR) << " bytes\n";
	if (fork() == 0) {
		std::cout << "child\n" << std::flush;
		raw_write(1, "child, a system call\n");
		_exit(0);
	}
	wait(nullptr);
	printf("not flushed, ");
	std::cout << "nor this\n";
}

int main(int, char **argv)
{
	std::string how = argv[1];
	const char *file = argv[2];
	int fd = -1;

	if (how == "used") // use the stream before it is redirected
		std::cout << "" << std::flush;
	if (how == "in") {
		dup2(open(file, O_RDONLY), 0);
		std::cerr << keeps_reading() << "\n";
		return 0;
	}
	if (how == "kept") {
		std::cerr << keeps_reading() << "\n";
		return 0;
	}
	if (how == "unbuffered")
		std::ios::sync_with_stdio(false);
	if (how == "freopen" || how == "append") {
		if (freopen(file, how == "append" ? "a" : "w", stdout) == nullptr)
			perror("freopen");
	} else if (how == "error") {
		if (freopen(file, "w", stderr) == nullptr)
			return 1;
		std::cerr << "std::cerr\n";
		fprintf(stderr, "fprintf\n");
		std::clog << "std::clog\n";
		fflush(stderr); // freopen may have made it buffered
		raw_write(2, "a system call\n");
		return std::cerr.good() ? 0 : 5;
	} else if (how == "open") {
		close(1);
		fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	} else if (how != "given") {
		fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
		dup2(fd, 1);
	}
	write_all();
	if (how == "both") { // through another descriptor of the file
		char text[9] = "";

		fflush(stdout);
		raw_write(1, "at the end\n");
		if (pread(fd, text, 8, 0) == 8)
			std::cerr << text << ", end " << lseek(fd, 0, SEEK_END) << "\n";
	}
	if (how == "closed") {
		int result = fclose(stdout);

		std::cerr << "fclose " << result << ", write " << write(1, "x", 1) << "\n";
	}
	if (how == "exit")
		_exit((fflush(stdout), 3));
	if (how == "exec") {
		fflush(stdout);
		execlp("sh", "sh", "-c", "echo executed", nullptr);
	}
	return 0;
}
