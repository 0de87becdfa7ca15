/* Loads the libraries first.so and second.so of the directory argv[1], and third.so, which is in this program's run path. Prints
 * the results. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

#define P(expr) print(#expr, (long)(expr))

static void print(const char *what, long value)
{
	printf("%s = %ld\n", what, value);
	fflush(stdout);
}

static const char *in(const char *name)
{
	static char path[8][4096];
	static int next;
	char *p = path[next++ % 8];

	snprintf(p, sizeof *path, "%s/%s", dir, name);
	return p;
}

static int count(void *library, const char *name)
{
	int (*f)(void) = library == NULL ? NULL : (int (*)(void))dlsym(library, name);

	return f == NULL ? -1 : f();
}

/* why prints the error of the dynamic linker, without the directory. */
static void why(void)
{
	const char *text = dlerror(), *at = text == NULL ? NULL : strstr(text, "/nowhere");

	printf("%s%s\n", text == NULL ? "no error" : "error", at == NULL ? "" : at);
	fflush(stdout);
}

static void once(void)
{
	P(dlopen(in("first.so"), RTLD_NOW | RTLD_NOLOAD) == NULL);
	why();
	void *first = dlopen(in("first.so"), RTLD_NOW);

	P(count(first, "first"));
	P(dlsym(RTLD_DEFAULT, "first") == NULL);
	P(dlopen(in("first.so"), RTLD_NOW) == first);
	P(dlopen(in("first.so"), RTLD_NOW | RTLD_NOLOAD) == first);
	P(count(first, "first"));
	symlink("first.so", in("link.so"));
	link(in("first.so"), in("hard.so"));
	P(dlopen(in("link.so"), RTLD_NOW) == first);
	P(dlopen(in("hard.so"), RTLD_NOW) == first);
	P(dlopen(in("../second.so/../first.so"), RTLD_NOW) == NULL);
	P(dlopen(in("first.so"), RTLD_NOW | RTLD_GLOBAL) == first);
	P(dlsym(RTLD_DEFAULT, "first") == dlsym(first, "first"));
	for (int i = 0; i < 5; i++)
		P(dlclose(first));
	P(dlopen(in("first.so"), RTLD_NOW | RTLD_NOLOAD) == first);
	P(dlclose(first));
	P(dlclose(first));
	P(dlopen(in("first.so"), RTLD_NOW | RTLD_NOLOAD) == NULL);
	first = dlopen(in("first.so"), RTLD_NOW);
	P(count(first, "first"));
}

static void replaced(void)
{
	void *first = dlopen(in("first.so"), RTLD_NOW), *second = dlopen(in("second.so"), RTLD_NOW);

	P(first != second);
	P(count(second, "second"));
	P(rename(in("second.so"), in("first.so")));
	P(dlopen(in("first.so"), RTLD_NOW) == first);
	P(dlopen(in("./first.so"), RTLD_NOW) == second);
	P(rename(in("first.so"), in("second.so")));
	P(rename(in("hard.so"), in("first.so")));
	P(dlopen(in("second.so"), RTLD_NOW) == second);
}

static void refused(void)
{
	P(dlopen(in("nowhere.so"), RTLD_NOW) == NULL);
	why();
	P(dlopen(in("nowhere/first.so"), RTLD_NOW) == NULL);
	why();
	P(dlopen(in("first.so/x"), RTLD_NOW) == NULL);
	int fd = open(in("text.so"), O_WRONLY | O_CREAT, 0600);

	P(write(fd, "text\n", 5));
	close(fd);
	P(dlopen(in("text.so"), RTLD_NOW) == NULL);
	P(dlerror() != NULL);
	P(dlopen(in("first.so"), 0) == NULL);
	P(dlerror() != NULL);
}

static void elsewhere(void)
{
	void *third = dlopen("third.so", RTLD_NOW);

	P(count(third, "third"));
	why();
	P(dlopen(NULL, RTLD_NOW) != NULL);
	P(dlopen("nowhere.so", RTLD_NOW) == NULL);
	P(chdir(dir));
	P(dlopen("./second.so", RTLD_NOW | RTLD_NOLOAD) == dlopen(in("second.so"), RTLD_NOW | RTLD_NOLOAD));
	P(dlopen("second.so", RTLD_NOW) == NULL);
	P(dlopen("third.so", RTLD_NOW) == third);
	char up[PATH_MAX];
	Dl_info info;

	P(dladdr(dlsym(third, "third"), &info) != 0);
	snprintf(up, sizeof up, "../../../../../../../../../..%s", info.dli_fname);
	P(dlopen(up, RTLD_NOW) == third);
	P(chdir("/"));
	symlink("/nowhere/at/all.so", in("out.so"));
	P(dlopen(in("out.so"), RTLD_NOW) == NULL);
}

static void children(void)
{
	void *second = dlopen(in("second.so"), RTLD_NOW);

	if (fork() == 0) {
		P(dlopen(in("second.so"), RTLD_NOW) == second);
		while (dlclose(second) == 0)
			;
		second = dlopen(in("second.so"), RTLD_NOW);
		P(count(second, "second"));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	P(count(second, "second"));
}

static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 100; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

int main(int argc, char **argv)
{
	dir = argv[argc - 1];
	int before = descriptors();

	once();
	replaced();
	refused();
	elsewhere();
	children();
	printf("%d descriptors more\n", descriptors() - before);
	return 0;
}
