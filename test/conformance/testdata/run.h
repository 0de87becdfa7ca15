/*
 * Runs the steps of cases.txt with the C library's functions and prints what
 * each came to. The Go test next door starts it in a local directory and under
 * the mount, and compares.
 *
 * A verb of the table is a function VERB(name); it takes its words through
 *
 *   P(i)  a path, as the flavour has it: relative, absolute, or relative to `here`
 *   R(i)  a path as it stands, for calls whose directory the table names
 *   S(i)  text
 *   N(i)  a number: constants joined by |, octal, decimal
 *   F(i)  a descriptor, T(i) a stream, D(i) a directory stream, M(i) memory
 *
 * and returns through one of the functions below. A flavour is the names by
 * which a verb is called: BY(plain, wide, at).
 */
#ifndef RUN_H
#define RUN_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum flavour { PLAIN, WIDE, AT };
extern enum flavour flavour;
extern int here; /* the case's directory */

#define BY(plain, wide, at) (flavour == PLAIN ? (plain) : flavour == WIDE ? (wide) : (at))

/* A buffer of known size, so that fortified builds check what goes into it. */
#define BUFFER_SIZE 65536
extern char buffer[BUFFER_SIZE];

void *nothing(void); /* a page that cannot be touched */
#define nowhere ((void *)8) /* what a field of a struct at NULL is */
const char *text_word(int i, bool path);
long long number_word(int i);
int words(void);
bool word_is(int i, const char *text); /* as it stands in the table */

#define P(i) text_word(i, true)
#define R(i) text_word(i, false)
#define S(i) text_word(i, false)
#define L(i) strlen(S(i))
#define N(i) number_word(i)
#define F(i) ((int)number_word(i))
#define T(i) ((FILE *)number_word(i))
#define D(i) ((DIR *)number_word(i))
#define M(i) ((char *)number_word(i))
#define MODE(i) ((mode_t)(words() > (i) ? N(i) : 0644))

typedef void verb_function(void);

struct verb {
	const char *name;
	verb_function *run;
	struct verb *next;
};

void enlist(struct verb *verb);

#define VERB(name)                                                    \
	static void verb_##name(void);                                \
	__attribute__((constructor)) static void enlist_##name(void)  \
	{                                                             \
		static struct verb v = {#name, verb_##name, NULL};    \
		enlist(&v);                                           \
	}                                                             \
	static void verb_##name(void)

/* Verbs whose result is a plain number, -1 with errno for an error. */
#define CALL(name, ...) VERB(name) { number(__VA_ARGS__); }

void number(long long result);
void error_number(int error);            /* of calls that return it */
void pointer(const void *result);        /* only whether it is one */
void descriptor(int fd);                 /* goes into the register */
int borrowed(int fd);                    /* into the register, for use only */
void stream(FILE *stream);
void directory(DIR *dir);
void memory(void *memory, size_t n);
void bytes(long long n, const char *data); /* a length and that many bytes */
void path(const char *path);             /* the case's directory reads @ */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void forget(int i);                      /* the register of word i is used up */
const char *error_name(void);

void attributes(int result, const struct stat *st);
long long constant(const char *name, size_t n, bool *known);

#endif
