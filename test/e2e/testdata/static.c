/* Appends a line to a file and prints the file. */
#include <stdio.h>

int main(int argc, char **argv)
{
	char line[256];
	FILE *f = argc == 2 ? fopen(argv[1], "a") : NULL;

	if (f == NULL || fputs("static\n", f) == EOF || fclose(f) != 0 || (f = fopen(argv[1], "r")) == NULL) {
		perror(argv[argc - 1]);
		return 1;
	}
	while (fgets(line, sizeof line, f) != NULL)
		fputs(line, stdout);
	return fclose(f);
}
