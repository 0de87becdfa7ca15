/* The environment that the process was started with, in which it is told of the
 * mount. Programs that show a title in place of their arguments write over it, and
 * getenv finds what they have copied, or nothing. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

extern char **environ;

/* The strings, one behind the other. Written once, before main. */
static char *strings;
static size_t length;

/* nv_keep_environment is called before main. */
void nv_keep_environment(void)
{
	size_t n = 0;

	for (char **e = environ; *e != NULL; e++)
		n += strlen(*e) + 1;
	strings = malloc(n);
	for (char **e = environ; *e != NULL && strings != NULL; e++) {
		size_t one = strlen(*e) + 1;

		memcpy(strings + length, *e, one);
		length += one;
	}
}

/* nv_given is getenv as it was. */
const char *nv_given(const char *name)
{
	size_t n = strlen(name);

	for (const char *s = strings; s != NULL && s < strings + length; s += strlen(s) + 1)
		if (strncmp(s, name, n) == 0 && s[n] == '=')
			return s + n + 1;
	return NULL;
}

/* nv_environment returns all of it, and how long that is. */
const char *nv_environment(size_t *n)
{
	*n = length;
	return strings;
}
