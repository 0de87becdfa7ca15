// A library that stores the addresses of the standard streams of C++ and of the C library before main.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

static FILE *const out = stdout, *const in = stdin;

void keeps_writing()
{
	std::cout << "library, std::cout\n";
	fprintf(out, "library, kept stdout\n");
}

int keeps_reading()
{
	char line[64];
	std::string word;
	int n = 0;

	if (fgets(line, sizeof line, in) != nullptr)
		n++;
	for (int c = getc(in); c != EOF && c != '\n'; c = getc(in))
		n += c == 'w';
	char *text = nullptr;
	size_t capacity = 0;

	n += (int)getline(&text, &capacity, in) * 2;
	n += (int)getdelim(&text, &capacity, '-', in) * 3;
	if (fscanf(in, "%63s ", line) == 1)
		n += line[0] * 4;
	free(text);
	while (std::getline(std::cin, word))
		n += 10;
	return n + (feof(in) ? 100 : 0) + (std::cin.eof() ? 1000 : 0);
}
