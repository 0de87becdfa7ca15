/* Prints the text that it was compiled with. */
#include <stdio.h>

int main(void)
{
	return fputs(SAYS, stdout) < 0;
}
