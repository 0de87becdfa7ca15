/* The environment that the process was started with, in which it is told of the
 * mount. Programs that show a title in place of their arguments write over it, and
 * getenv finds what they have copied, or nothing. */
#include <stdlib.h>
#include <string.h>

#include "nv.h"

extern char **environ;

/* The strings, one behind the other. Written once, before main. */
NV_EARLY static char *strings;
NV_EARLY static size_t length;

/* Where usual ones are kept: what malloc returns to the application lies where it
 * does without this library. Some programs are 1% slower if it does not. */
static char static_space[64 << 10] __attribute__((aligned(4096)));

/* value returns what follows the name of a variable and "=" in s; NULL: it is another one. */
NV_EARLY_CODE static const char *value(const char *s, const char *name)
{
	for (; *name != '\0'; s++, name++)
		if (*s != *name)
			return NULL;
	return *s == '=' ? s + 1 : NULL;
}

/* nv_keep_environment is called before main. It keeps an environment that has
 * the variable of that name, and returns its value; NULL without memory, too. */
NV_EARLY_CODE const char *nv_keep_environment(const char *name)
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
	return nv_given(name);
}

/* nv_given is getenv as it was. */
NV_EARLY_CODE const char *nv_given(const char *name)
{
	const char *found = NULL;

	for (const char *s = strings; s != NULL && s < strings + length && found == NULL; s += strlen(s) + 1)
		found = value(s, name);
	return found;
}

/* nv_environment returns all of it, and how long that is. */
const char *nv_environment(size_t *n)
{
	*n = length;
	return strings;
}
