# The preloaded library and the Go runtime it loads, one for each MPI library.
# Included by the top Makefile; everything lies beside bin/nvmecr.
#
#   make libraries   bin/libnvmecr.so and the runtimes that can be built here
#
# $(call TAGS,tag) are the flags of a build with that tag, and with those that the
# top Makefile may add.

BIN ?= bin
GO ?= go

ifndef TAGS
TAGS = $(if $(1),-tags $(1))
endif

SHIM_SOURCES := $(wildcard posixshim/shim/*/*.c) $(wildcard mpiwrap/interpose/*.c)
SHIM_HEADERS := $(wildcard posixshim/shim/*.h posixshim/shim/*/*.h) $(wildcard mpiwrap/interpose/*.h)
# make SHIM_OPTIMIZE=-O1 SHIM_EXTRA=-fsanitize=undefined builds it otherwise.
SHIM_OPTIMIZE ?= -O2
SHIM_CFLAGS := -Iposixshim/shim -std=gnu11 -D_GNU_SOURCE -U_FORTIFY_SOURCE $(SHIM_OPTIMIZE) -g -fPIC \
	-fvisibility=hidden -Wall -Wextra -Werror $(SHIM_EXTRA)

SHIM_OVERLAY := build/overlay.json

# Go interrupts its threads with SIGURG unless told not to; the application
# must not see that signal.
RUNTIME_FLAGS := -buildmode=c-shared -ldflags "-X=runtime.godebugDefault=asyncpreemptoff=1" -overlay $(SHIM_OVERLAY)

# Go unblocks some signals that are the application's on its own threads, and on each
# thread that calls it. One that blocks SIGCHLD in all its threads, and waits for it by
# sigwait or a signalfd, would lose it. Go's table says which; the runtimes are built
# with a copy in which it is only those of faults and of the C library's own. (Not called
# *.go: build/ is no package.)
SIGTAB := $(shell $(GO) env GOROOT)/src/runtime/sigtab_linux_generic.go

$(SHIM_OVERLAY): $(SIGTAB) posixshim/shim.mk
	@mkdir -p build
	sed -E '/"SIG(CHLD|PROF|STKFLT|ILL|TRAP)|"signal 34"/s/ \+ _SigUnblock//' $< >build/sigtab
	@test "$$(diff $< build/sigtab | grep -c '^>')" = 6 || { echo "$<: not the table of signals that posixshim/shim.mk expects"; exit 1; }
	printf '{"Replace": {"%s": "%s"}}\n' $< $(CURDIR)/build/sigtab >$@

SHIM_RUNTIMES := $(BIN)/libnvmecr-plain.so
ifneq ($(shell pkg-config --exists ompi 2>/dev/null && echo yes),)
SHIM_RUNTIMES += $(BIN)/libnvmecr-openmpi.so
else
$(info no OpenMPI development files (libopenmpi-dev): its runtime is not built)
endif
ifneq ($(shell pkg-config --exists mpich 2>/dev/null && echo yes),)
SHIM_RUNTIMES += $(BIN)/libnvmecr-mpich.so
else
$(info no MPICH development files (libmpich-dev): its runtime is not built)
endif

.PHONY: libraries
libraries: $(BIN)/libnvmecr.so $(SHIM_RUNTIMES)

# Every program that a job starts loads it, most of them to do nothing with it: the
# file is mapped in two pieces instead of four. The compiler's own beginning and end of a
# library look symbols up that nobody has, and this one cannot be unloaded.
$(BIN)/libnvmecr.so: $(SHIM_SOURCES) $(SHIM_HEADERS) posixshim/shim.mk
	@mkdir -p $(BIN)
	$(CC) $(SHIM_CFLAGS) -shared -nostartfiles -Wl,-z,relro,-z,now,-z,noseparate-code -o $@ $(SHIM_SOURCES)

# The go command knows better than make what has changed. The headers that it
# writes beside the libraries are of no use here.
.PHONY: $(SHIM_RUNTIMES)
$(BIN)/libnvmecr-plain.so: $(SHIM_OVERLAY)
	$(GO) build $(call TAGS) -trimpath $(RUNTIME_FLAGS) -o $@ ./cmd/libnvmecr
	@rm -f $(@:.so=.h)

$(BIN)/libnvmecr-openmpi.so: $(SHIM_OVERLAY)
	$(GO) build $(call TAGS,openmpi) -trimpath $(RUNTIME_FLAGS) -o $@ ./cmd/libnvmecr
	@rm -f $(@:.so=.h)

$(BIN)/libnvmecr-mpich.so: $(SHIM_OVERLAY)
	CGO_CFLAGS="$$(pkg-config --cflags mpich)" CGO_LDFLAGS="$${CGO_LDFLAGS-} -Wl,--as-needed -lmpich" \
		$(GO) build $(call TAGS,mpich) -trimpath $(RUNTIME_FLAGS) -o $@ ./cmd/libnvmecr
	@rm -f $(@:.so=.h)
