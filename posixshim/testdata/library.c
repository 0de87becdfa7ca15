/* A library that is built several times. NAME is its name, and NEXT is a library that it needs. */
#include <stdio.h>

static int calls;

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

#ifdef NEXT
int NEXT(void);

int NAME(void)
{
	return 10 * NEXT() + ++calls;
}
#else
int NAME(void)
{
	return ++calls;
}
#endif

__attribute__((constructor)) static void begin(void)
{
	printf("  begin %s\n", TEXT(NAME));
	fflush(stdout);
}

__attribute__((destructor)) static void end(void)
{
	printf("  end %s\n", TEXT(NAME));
	fflush(stdout);
}
