#include "run.h"

#include <grp.h>

#include <stdarg.h>
#include <sys/mman.h>

enum flavour flavour;
int here = -1;
char buffer[BUFFER_SIZE];

static char root[4096]; /* where the cases are */
static char home[4400]; /* the directory of this one */
static struct verb *verbs;

/* The words of a step. */
#define WORDS 12
static char *word[WORDS];
static int count;
static char expanded[WORDS][16 << 10];

/* What a step may leave to later ones. */
enum kind { NOTHING, NUMBER, DESCRIPTOR, STREAM, DIRECTORY, MEMORY };
static struct reg {
	char name[16];
	enum kind kind;
	long long value;
	size_t size;
} regs[64];
static struct reg *result;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fprintf(stderr, "run: ");
	vfprintf(stderr, format, ap);
	fprintf(stderr, "\n");
	exit(2);
}

void enlist(struct verb *verb)
{
	verb->next = verbs;
	verbs = verb;
}

static struct reg *find(const char *name, bool make)
{
	for (struct reg *r = regs; r < regs + sizeof regs / sizeof *regs; r++) {
		if (strcmp(r->name, name) == 0)
			return r;
		if (r->name[0] == '\0') {
			if (!make)
				return NULL;
			strncpy(r->name, name, sizeof r->name - 1);
			return r;
		}
	}
	die("too many registers");
}

static void keep(enum kind kind, long long value, size_t size)
{
	if (result == NULL)
		return;
	result->kind = kind;
	result->value = value;
	result->size = size;
}

void forget(int i)
{
	struct reg *r = find(word[i], false);

	if (r != NULL)
		r->kind = NOTHING; /* its value stays: a number that was closed */
}

/* ---- words ---- */

int words(void)
{
	return count;
}

bool word_is(int i, const char *text)
{
	return i < count && strcmp(word[i], text) == 0;
}

/* repeat appends {N:text}, N times the text, or {=N:text}, as often as it
 * takes to make the whole N bytes. It returns what follows. */
static const char *repeat(const char *p, char *start, char **out)
{
	bool total = *++p == '=';
	char *end;
	long n = strtol(p + total, &end, 10);
	const char *text = end + 1, *close = strchr(text, '}');

	if (close == NULL || close == text)
		die("%s: what is to be repeated?", p);
	size_t length = (size_t)(close - text);

	if (total)
		n = (n - (*out - start)) / (long)length;
	for (; n > 0; n--, *out += length)
		memcpy(*out, text, length);
	return close + 1;
}

void *nothing(void)
{
	static void *page;

	if (page == NULL)
		page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return page;
}

const char *text_word(int i, bool is_path)
{
	if (i >= count)
		die("%s: word %d is missing", word[0], i);
	const char *p = word[i];
	char *start = expanded[i], *out = start;

	if (strcmp(p, "NULL") == 0)
		return NULL;
	if (strcmp(p, "BAD") == 0)
		return nowhere;
	if (strcmp(p, "\"\"") == 0)
		return "";
	if (*p == '@') {
		out = stpcpy(out, home);
		p++;
	} else if (is_path && flavour == WIDE && *p != '/') {
		out += sprintf(out, "%s/", home);
	}
	while (*p != '\0') {
		if (*p == '{') {
			p = repeat(p, start, &out);
		} else if (*p == '\\') {
			*out++ = p[1] == 'n' ? '\n' : p[1] == 's' ? ' ' : p[1] == 't' ? '\t' : p[1];
			p += 2;
		} else {
			*out++ = *p++;
		}
	}
	*out = '\0';
	return start;
}

long long number_word(int i)
{
	long long n = 0;

	if (i >= count)
		die("%s: word %d is missing", word[0], i);
	for (const char *p = word[i]; *p != '\0';) {
		size_t length = strcspn(p, "|");
		char part[64] = "";
		bool known;
		char *end;

		memcpy(part, p, length < sizeof part ? length : sizeof part - 1);
		struct reg *r = find(part, false);
		long long c = r != NULL ? r->value : constant(part, length, &known);

		if (r == NULL && !known) {
			c = strtoll(part, &end, 0);
			if (*end != '\0')
				die("%s: %s is no number", word[0], part);
		}
		n |= c;
		p += length + (p[length] == '|');
	}
	return n;
}

/* ---- results ---- */

void say(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
}

const char *error_name(void)
{
	const char *name = strerrorname_np(errno);

	return name != NULL ? name : "no error";
}

void number(long long n)
{
	keep(NUMBER, n, 0);
	if (n == -1)
		say("-1 %s", error_name());
	else
		say("%lld", n);
}

void error_number(int error)
{
	say("%s", error == 0 ? "0" : strerrorname_np(error));
}

void pointer(const void *p)
{
	if (p == NULL)
		say("NULL %s", error_name());
	else
		say("ok");
}

void descriptor(int fd)
{
	keep(DESCRIPTOR, fd, 0);
	if (fd >= 0)
		say("fd");
	else
		number(fd);
	if (fd < 0 && result != NULL)
		result->kind = NOTHING;
}

int borrowed(int fd)
{
	keep(NUMBER, fd, 0);
	return fd;
}

void stream(FILE *f)
{
	keep(f != NULL ? STREAM : NOTHING, (long long)f, 0);
	pointer(f);
}

void directory(DIR *d)
{
	keep(d != NULL ? DIRECTORY : NOTHING, (long long)d, 0);
	pointer(d);
}

void memory(void *m, size_t n)
{
	keep(m != MAP_FAILED ? MEMORY : NOTHING, (long long)m, n);
	pointer(m == MAP_FAILED ? NULL : m);
}

static void escaped(const char *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t same = 1;

		while (i + same < n && data[i + same] == data[i])
			same++;
		if (data[i] > ' ' && data[i] < 127)
			say("%c", data[i]);
		else
			say("\\%02x", (unsigned char)data[i]);
		if (same > 4) {
			say("*%zu", same);
			i += same - 1;
		}
	}
}

void bytes(long long n, const char *data)
{
	if (n < 0) {
		number(n);
		return;
	}
	say("%lld ", n);
	escaped(data, (size_t)n);
}

void path(const char *p)
{
	size_t n = strlen(home);

	if (p == NULL)
		pointer(p);
	else if (strncmp(p, home, n) == 0 && (p[n] == '/' || p[n] == '\0')) {
		say("@");
		escaped(p + n, strlen(p + n));
	} else if (strcmp(p, root) == 0) {
		say("@/..");
	} else {
		escaped(p, strlen(p));
	}
}

/* ---- cases ---- */

static verb_function *verb_of(const char *name)
{
	for (struct verb *v = verbs; v != NULL; v = v->next)
		if (strcmp(v->name, name) == 0)
			return v->run;
	return NULL;
}

/* step runs `[register=]verb word...`. */
static void step(char *line)
{
	char *rest = line, *equals;

	printf("%s = ", line);
	count = 0;
	while (count < WORDS && (word[count] = strtok_r(rest, " ", &rest)) != NULL)
		count++;
	result = NULL;
	if (count > 0 && (equals = strchr(word[0], '=')) != NULL) {
		*equals = '\0';
		result = find(word[0], true);
		word[0] = equals + 1;
	}
	verb_function *run = count > 0 ? verb_of(word[0]) : NULL;

	if (run == NULL)
		die("%s is no verb", word[0]);
	memmove(word, word + 1, (size_t)--count * sizeof *word);
	errno = 0;
	run();
	printf("\n");
	fflush(stdout); /* a crash in the next step is blamed on that */
}

/* used counts the low descriptors in use. */
static int used(void)
{
	int n = 0;

	for (int fd = 0; fd < 32; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static int used_before;
static uid_t became_from; /* who the program is */

static void begin(const char *name)
{
	static int cases;

	used_before = used();
	snprintf(home, sizeof home, "%s/%d", root, ++cases);
	/* Of processes that make a case together the first has made it. */
	if ((mkdir(home, 0755) != 0 && errno != EEXIST) || chdir(home) != 0 || (here = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		die("%s: %s", home, strerror(errno));
	printf("case %s\n", name);
	fflush(stdout);
}

static void end(void)
{
	/* Who a case has become is its own affair. */
	if (geteuid() != getuid() || getuid() != became_from) {
		if (setresuid(became_from, became_from, 0) != 0 || setresgid(0, 0, 0) != 0 || setgroups(0, NULL) != 0)
			die("user %d again: %s", (int)became_from, strerror(errno));
	}
	for (struct reg *r = regs; r->name[0] != '\0'; r++) {
		switch (r->kind) {
		case DESCRIPTOR:
			close((int)r->value);
			break;
		case STREAM:
			fclose((FILE *)r->value);
			break;
		case DIRECTORY:
			closedir((DIR *)r->value);
			break;
		case MEMORY:
			munmap((void *)r->value, r->size);
			break;
		default:
			break;
		}
		memset(r, 0, sizeof *r);
	}
	if (here >= 0)
		close(here);
	here = -1;
	if (used() != used_before)
		printf("descriptors left open = %d\n", used() - used_before);
	umask(022);
	if (chdir("/") != 0)
		die("/: %s", strerror(errno));
}

/* run DIRECTORY FLAVOUR <steps: `case NAME` begins a case, other lines are steps
 * run verbs | constants: what the table may use */
int main(int argc, char **argv)
{
	static char line[64 << 10];
	bool open_case = false;

	became_from = getuid();
	if (argc > 2 && became_from == 0 && chmod(argv[1], 0777) != 0) /* for who a case becomes */
		die("%s: %s", argv[1], strerror(errno));

	if (argc == 2) {
		for (struct verb *v = verbs; v != NULL && strcmp(argv[1], "verbs") == 0; v = v->next)
			puts(v->name);
		if (strcmp(argv[1], "constants") == 0)
			constant(NULL, 0, NULL);
		return 0;
	}
	if (argc != 3)
		die("usage: run DIRECTORY plain|wide|at");
	snprintf(root, sizeof root, "%s", argv[1]);
	flavour = strcmp(argv[2], "wide") == 0 ? WIDE : strcmp(argv[2], "at") == 0 ? AT : PLAIN;
	umask(022);
	while (fgets(line, sizeof line, stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "case ", 5) == 0) {
			if (open_case)
				end();
			open_case = true;
			begin(line + 5);
		} else {
			step(line);
		}
	}
	if (open_case)
		end();
	printf("end\n");
	return 0;
}
