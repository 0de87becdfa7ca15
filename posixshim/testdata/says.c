/* Prints the text that it was built with. */
#include <stdio.h>

int main(void)
{
	return fputs(SAYS, stdout) < 0;
}
