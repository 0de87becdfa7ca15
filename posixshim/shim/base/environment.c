/* A copy of the environment that the process was started with, which has the settings of the mount. Programs that change
 * their title (setproctitle) overwrite the memory of the environment, and getenv may then find nothing. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

extern char **environ;

/* The strings, one after the other, each with its NUL. Written before main, and not changed after that. */
NV_EARLY static char *strings;
NV_EARLY static size_t length;

/* The copy of an environment of usual size. Memory of malloc would move what the application allocates after that, and some
 * programs are then 1% slower. */
static char static_space[64 << 10] __attribute__((aligned(4096)));

/* value returns the value in s, which is NAME=VALUE, if its name is name; otherwise NULL. */
NV_EARLY_CODE static const char *value(const char *s, const char *name)
{
	for (; *name != '\0'; s++, name++)
		if (*s != *name)
			return NULL;
	return *s == '=' ? s + 1 : NULL;
}

/* nv_save_environment is called before main. It copies the environment if that has the variable name, and returns the value
 * of the variable. It returns NULL if there is no such variable, or no memory. */
NV_EARLY_CODE const char *nv_save_environment(const char *name)
{
	char **has = environ;
	size_t n = 0;

	while (*has != NULL && value(*has, name) == NULL)
		has++;
	if (*has == NULL)
		return NULL;
	for (char **e = environ; *e != NULL; e++)
		n += strlen(*e) + 1;
	strings = n <= sizeof static_space ? static_space : malloc(n);
	for (char **e = environ; *e != NULL && strings != NULL; e++) {
		size_t one = strlen(*e) + 1;

		memcpy(strings + length, *e, one);
		length += one;
	}
	return nv_initial_env(name);
}

/* nv_initial_env is getenv of the copy. */
NV_EARLY_CODE const char *nv_initial_env(const char *name)
{
	const char *found = NULL;

	for (const char *s = strings; s != NULL && s < strings + length && found == NULL; s += strlen(s) + 1)
		found = value(s, name);
	return found;
}

/* nv_environment returns all strings of the copy, and their length. */
const char *nv_environment(size_t *n)
{
	*n = length;
	return strings;
}
