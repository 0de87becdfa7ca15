/* What a library of the mount needs itself.
 *
 * The dynamic linker cannot look for it here: it cannot read the mount, and where
 * the copy is that it loads (library.c), $ORIGIN is nothing. But what is loaded it finds by its
 * DT_SONAME. So what it would find in the mount is loaded first, and is a library's that
 * needs it from then on. The order of looking is the linker's: DT_RPATH, also of who
 * needs this library, LD_LIBRARY_PATH, DT_RUNPATH. Nothing in the file is trusted. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nv.h"

/* ---- what is in the file ---- */

struct elf {
	const char *bytes;
	size_t size;
	ElfW(Ehdr) head;
	uint64_t dynamic, entries, strings; /* entries of the dynamic section, and offsets */
};

static bool get(const struct elf *e, uint64_t at, void *to, size_t n)
{
	if (at > e->size || n > e->size - at)
		return false;
	memcpy(to, e->bytes + at, n);
	return true;
}

static bool segment(const struct elf *e, unsigned i, ElfW(Phdr) *s)
{
	return i < e->head.e_phnum && get(e, e->head.e_phoff + i * sizeof *s, s, sizeof *s);
}

static bool entry(const struct elf *e, uint64_t i, ElfW(Dyn) *d)
{
	return i < e->entries && get(e, e->dynamic + i * sizeof *d, d, sizeof *d) && d->d_tag != DT_NULL;
}

/* offset_of is where in the file an address is; behind it if it is nowhere. */
static uint64_t offset_of(const struct elf *e, uint64_t address)
{
	ElfW(Phdr) s;

	for (unsigned i = 0; segment(e, i, &s); i++)
		if (s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
			return s.p_offset + (address - s.p_vaddr);
	return e->size;
}

/* text is a string of the dynamic section; NULL if it does not end. */
static const char *text(const struct elf *e, uint64_t at)
{
	at += e->strings;
	return at < e->size && memchr(e->bytes + at, '\0', e->size - at) != NULL ? e->bytes + at : NULL;
}

static const char *text_of(const struct elf *e, int64_t tag)
{
	ElfW(Dyn) d;

	for (uint64_t i = 0; entry(e, i, &d); i++)
		if (d.d_tag == tag)
			return text(e, d.d_un.d_val);
	return NULL;
}

/* open_elf maps a copy, which nobody else can write to. */
static bool open_elf(struct elf *e, int fd)
{
	struct stat st;
	ElfW(Phdr) s;
	ElfW(Dyn) d;

	*e = (struct elf){.bytes = MAP_FAILED};
	if (REAL(fstat)(fd, &st) != 0 || st.st_size <= 0)
		return false;
	e->size = (size_t)st.st_size;
	e->bytes = REAL(mmap)(NULL, e->size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (e->bytes == MAP_FAILED || !get(e, 0, &e->head, sizeof e->head) || memcmp(e->head.e_ident, ELFMAG, SELFMAG) != 0 ||
	    e->head.e_ident[EI_CLASS] != ELFCLASS64)
		return false;
	for (unsigned i = 0; segment(e, i, &s); i++)
		if (s.p_type == PT_DYNAMIC) {
			e->dynamic = s.p_offset;
			e->entries = s.p_filesz / sizeof d;
		}
	e->strings = e->size;
	for (uint64_t i = 0; entry(e, i, &d); i++)
		if (d.d_tag == DT_STRTAB)
			e->strings = offset_of(e, d.d_un.d_ptr);
	return true;
}

static void close_elf(struct elf *e)
{
	if (e->bytes != MAP_FAILED)
		REAL(munmap)((void *)e->bytes, e->size);
}

/* ---- looking for a library ---- */

/* candidate is the path of a library in a directory of n characters, which may begin at
 * that of the library at path; NULL without memory. */
static char *candidate(const char *dir, size_t n, const char *path, const char *name)
{
	static const char *const origins[] = {"$ORIGIN", "${ORIGIN}"};
	const char *slash = strrchr(path, '/');
	char *made;

	for (size_t i = 0; i < sizeof origins / sizeof *origins; i++) {
		size_t m = strlen(origins[i]);

		if (n >= m && memcmp(dir, origins[i], m) == 0 && (n == m || dir[m] == '/'))
			return asprintf(&made, "%.*s/.%.*s/%s", (int)(slash - path), path, (int)(n - m), dir + m, name) < 0 ? NULL : made;
	}
	return asprintf(&made, "%.*s/%s", n == 0 ? 1 : (int)n, n == 0 ? "." : dir, name) < 0 ? NULL : made;
}

/* look says that a library is in one of the directories; in found is its path if that is
 * ours. What is elsewhere the linker finds itself. */
static bool look(const char *dirs, const char *path, const char *name, char **found)
{
	for (const char *end; dirs != NULL; dirs = *end == '\0' ? NULL : end + 1) {
		end = dirs + strcspn(dirs, ":;");
		char *made = candidate(dirs, (size_t)(end - dirs), path, name);
		struct nv_place at;
		bool ours = made != NULL && nv_route(AT_FDCWD, made, &at);

		if (made != NULL && access(made, R_OK) == 0) {
			*found = ours ? made : NULL;
			if (!ours)
				free(made);
			return true;
		}
		free(made);
	}
	return false;
}

/* find returns the path of a library of the mount that is needed, NULL if it is none. */
static char *find(const struct nv_loading *l, const char *runpath, const char *name)
{
	char *found = NULL;

	for (const struct nv_loading *o = l; runpath == NULL && o != NULL; o = o->outer)
		if (look(o->rpath, o->path, name, &found))
			return found;
	if (!look(nv_given("LD_LIBRARY_PATH"), l->path, name, &found))
		look(runpath, l->path, name, &found);
	return found;
}

/* nv_look_for is find for a program that names a library without a path. */
char *nv_look_for(const char *name)
{
	char *found = NULL;

	look(nv_given("LD_LIBRARY_PATH"), "/", name, &found);
	return found;
}

/* nv_present says that the linker has a library by that name. */
bool nv_present(const char *name)
{
	void *library = REAL(dlopen)(name, RTLD_LAZY | RTLD_NOLOAD);

	if (library != NULL)
		dlclose(library);
	return library != NULL;
}

/* under_way says that a library is being loaded, because two need each other, or that
 * too many are, one for the other. */
static bool under_way(const struct nv_loading *l, const char *path)
{
	struct stat st;
	bool is = stat(path, &st) != 0;

	for (unsigned n = 0; l != NULL && !is; l = l->outer)
		is = l->ino == st.st_ino || ++n == NV_NEEDED;
	return is;
}

/* load_needed loads what is needed by one name; false if that is here and cannot be. */
static bool load_needed(struct nv_loading *l, const char *runpath, const char *name)
{
	if (strchr(name, '/') != NULL || nv_present(name))
		return true;
	char *path = find(l, runpath, name);
	bool done = path == NULL || under_way(l, path);

	if (!done) {
		l->held[l->count] = nv_load_library(path, RTLD_LAZY);
		done = l->held[l->count] != NULL;
		l->count += done;
	}
	free(path);
	return done;
}

/* nv_load_needed loads what the library in the copy needs. Where that fails, dlerror says why. */
bool nv_load_needed(struct nv_loading *l, int copy)
{
	struct elf e;
	bool done = true;
	ElfW(Dyn) d;

	if (open_elf(&e, copy)) {
		const char *runpath = text_of(&e, DT_RUNPATH), *name;

		l->rpath = runpath == NULL ? text_of(&e, DT_RPATH) : NULL;
		for (uint64_t i = 0; done && l->count < NV_NEEDED && entry(&e, i, &d); i++)
			if (d.d_tag == DT_NEEDED && (name = text(&e, d.d_un.d_val)) != NULL)
				done = load_needed(l, runpath, name);
		l->rpath = NULL; /* it ends with the mapping */
	}
	close_elf(&e);
	return done;
}

/* nv_let_needed leaves what was loaded to the library that needs it. */
void nv_let_needed(struct nv_loading *l)
{
	while (l->count > 0)
		dlclose(l->held[--l->count]);
}
