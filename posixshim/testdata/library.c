/* A library that is built as several: NAME is what it is called. */
#include <stdio.h>

static int calls;

int NAME(void)
{
	return ++calls;
}

__attribute__((constructor)) static void begin(void)
{
	printf("  begin\n");
	fflush(stdout);
}

__attribute__((destructor)) static void end(void)
{
	printf("  end\n");
	fflush(stdout);
}
