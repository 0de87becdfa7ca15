/* Libraries of the directory argv[1] that need others there: TestNeeds makes them.
 * Prints what becomes of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *dir;

/* load loads a library and calls its function. */
static void *load(const char *path, const char *name)
{
	void *library = dlopen(path, RTLD_NOW);
	int (*f)(void) = library == NULL ? NULL : (int (*)(void))dlsym(library, name);
	const char *error = dlerror();

	printf("%s: %d", name, f == NULL ? -1 : f());
	if (error != NULL)
		printf(", %s", strncmp(error, dir, strlen(dir)) == 0 ? error + strlen(dir) : error);
	printf("\n");
	fflush(stdout);
	return library;
}

static void *load_in(const char *name)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s.so", dir, name);
	return load(path, name);
}

int main(int argc, char **argv)
{
	dir = argv[argc - 1];
	void *chain = load_in("chain"), *second = load_in("second");

	printf("global: %d\n", dlsym(RTLD_DEFAULT, "low") != NULL);
	if (chain != NULL)
		dlclose(chain);
	printf("closed\n");
	fflush(stdout);
	if (second != NULL)
		dlclose(second);
	printf("both closed\n");
	fflush(stdout);
	load_in("inherits");
	load_in("lacks");
	load_in("lacks_below");
	load("liblow.so", "low");
	load("liblow.so", "low");
	load("libnowhere.so", "nowhere");
	if (chdir(dir) == 0)
		load("./chain.so", "chain");
	dlopen("./chain.so", RTLD_NOW | RTLD_GLOBAL);
	printf("global: %d\n", dlsym(RTLD_DEFAULT, "low") != NULL);
	return 0;
}
