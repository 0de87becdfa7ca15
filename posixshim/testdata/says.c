/* Says what it was built to say. */
#include <stdio.h>

int main(void)
{
	return fputs(SAYS, stdout) < 0;
}
