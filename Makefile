# make            builds everything into bin/, usable from there, and starts it once
# make run        installs what is missing, builds, and runs the demonstration
# make test       all tests; of the fuzz tests what is in their corpora. Ends with
#                 how many passed, failed, were skipped
# make race       the packages in which threads meet, under the race detector; takes three minutes
# make ci         make test and make race, with one summary at the end
# make test-apps  installs programs that scientists use (see scripts/deps.sh: 310 MB
#                 to download, 1.3 GB on disk) and tests those; takes minutes
# make build/versitygw the object store that second levels in S3 are tested with, where it is
#                 there (a module of its own: some minutes, 300 MB in Go's caches)
# make test-nofuse the programs of test/apps, and test/e2e, without the view that FUSE
#                 gives the kernel; takes five minutes
# make interop    our initiator and target with those of Linux, in virtual machines,
#                 and of SPDK where it is installed; see docs/dev/interop.md. Installs
#                 QEMU, nvme-cli and more (see scripts/deps.sh), downloads two kernels
#                 of Debian's (180 MB, 550 MB in build/); takes more than half
#                 an hour, and longer with the driver over SPDK
# make bench      the numbers the project promises, as ratios of one run
# make lint       gofmt, vet, staticcheck, shellcheck
# make fuzz       each fuzz test for FUZZTIME (default 10s), such as FUZZTIME=10m;
#                 what fails is kept in testdata/fuzz; and CRASHES contents
#                 that random crashes may leave (default a million), mounted
# make exhaustive all contents that crashes in all short workloads may leave, in
#                 all configurations, mounted; takes hours. Before that, all ways
#                 to execute a program of the mount with all kinds of programs
# make faults     every fault of the wire at every PDU of a workload
# make mutants    deliberate faults of the code, and which test notices each
# make soak       ranks, targets and connections killed at random for MINUTES
#                 (default 1), as long in one tree, with mirrored targets of which one is lost, and with copies
#                 on targets of which several are lost; every acknowledged byte is accounted for
# make install    into PREFIX (/usr/local), below DESTDIR if that is set; what Slurm needs, too
# make run-cluster runs Slurm with four nodes on this machine, loses one and then a target, and shows that the job goes on
# make deps       installs what is missing (Debian, Ubuntu); silent when all is there
# make clean
#
# With SPDK=1 on the command line everything is built with the driver over SPDK,
# which pkg-config must find: see docs/spdk.md.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

export PATH := $(PATH):/usr/local/go/bin

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 10s
CRASHES     ?= 1000000
MINUTES     ?= 1
COMMIT      := $(shell git describe --always --dirty 2>/dev/null)
# A clone that belongs to another user builds too: the commit is passed along,
# not looked up by the go command. All is built without the paths of this clone, tests too: a package is compiled once for
# all of it, and what is compiled in one clone serves another one.
export GOFLAGS := -buildvcs=false -trimpath $(GOFLAGS)
# The product, and the benchmark.
MODULES     := . bench
# What the race detector is run on: packages in which threads or goroutines meet.
RACE        := ./nvmf/filedev ./nvmf/memdev ./nvmf/tcp ./nvmf/target ./nvmf/tls ./nvmf/wiretest \
	./nvmf/provision/embedded ./nvmf/provision/nvmet ./nvmf/provision/spdk \
	./microfs ./posixshim ./internal/jsonrpc ./internal/owner ./internal/store ./cmd/nvmecr/command ./test/fabric

# The plugin for Slurm is built where Slurm's header is.
SPANK := $(if $(wildcard /usr/include/slurm/spank.h),bin/nvmecr-spank.so)

.PHONY: all
all: bin/nvmecr bin/nvmecr-bench bin/nvmecr-bench-rank bin/libnvmecr-bench-cubic.so bin/libtestyield.so $(SPANK) libraries started

# An empty mark file: nothing is looked for again until the list of needs
# changes. As an included file it is made before anything else, and what is
# below is read once it is there.
build/deps: scripts/deps.sh
	@scripts/deps.sh
	@mkdir -p build && touch $@

.PHONY: deps
deps: build/deps

ifneq ($(MAKECMDGOALS),clean)
include build/deps
endif

HAVE_SPDK  := $(shell scripts/spdk-rpath.sh >/dev/null 2>&1 && echo yes)
# Its libraries are found where they are now, wherever that is.
SPDK_PATHS := $(if $(HAVE_SPDK),$(shell scripts/spdk-rpath.sh))
comma      := ,
ifdef SPDK
ifndef HAVE_SPDK
$(error pkg-config does not find SPDK: install it as https://spdk.io/doc/getting_started.html says, \
configured --with-shared, and name its lib/pkgconfig in PKG_CONFIG_PATH)
endif
export CGO_LDFLAGS := $(CGO_LDFLAGS) $(SPDK_PATHS)
TAGS = -tags spdk$(if $(1),$(comma)$(1))
else
TAGS   = $(if $(1),-tags $(1))
endif

COMMAND_FLAGS = $(call TAGS) -ldflags "-X nvmecr/internal/cli.commit=$(COMMIT)"

.PHONY: bin/nvmecr
bin/nvmecr:
	go build $(COMMAND_FLAGS) -o $@ ./cmd/nvmecr

# What `nvmecr bench` executes: of a module of its own, which has what only it needs.
.PHONY: bin/nvmecr-bench
bin/nvmecr-bench:
	go build -C bench $(COMMAND_FLAGS) -o ../$@ ./cmd/nvmecr-bench

# The rank of the benchmark: an application like any other.
bin/nvmecr-bench-rank: $(wildcard bench/workers/rank/*.[ch])
	@mkdir -p bin
	$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -pthread -o $@ $(filter %.c,$^)

# Gives the benchmark's peers the congestion control that we have.
bin/libnvmecr-bench-cubic.so: bench/cubic/cubic.c
	@mkdir -p bin
	$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -fPIC -shared -Wall -Wextra -Werror -o $@ $<

# Lets the ranks of tests sleep while they wait.
bin/libtestyield.so: internal/demo/demotest/yield/yield.c
	@mkdir -p bin
	$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -fPIC -shared -Wall -Wextra -Werror -o $@ $<

bin/nvmecr-spank.so: slurm/spank/nvmecr.c
	@mkdir -p bin
	$(CC) -std=gnu11 -O2 -g -fPIC -shared -Wall -Wextra -Werror -o $@ $<

# bin/libnvmecr*.so; defines the target "libraries".
ifneq ($(wildcard build/deps),)
include posixshim/shim.mk
endif

# What was built has been started once.
.PHONY: started
started: bin/nvmecr bin/nvmecr-bench libraries
	@scripts/start.sh $(BIN) $(patsubst $(BIN)/libnvmecr-%.so,%,$(SHIM_RUNTIMES))

PREFIX  ?= /usr/local
DESTDIR ?=

.PHONY: install
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/nvmecr/slurm
	install bin/nvmecr bin/nvmecr-bench bin/nvmecr-bench-rank $(DESTDIR)$(PREFIX)/bin
	install bin/libnvmecr*.so $(DESTDIR)$(PREFIX)/lib/nvmecr
	install slurm/etc/nvmecr-hook.sh $(SPANK) $(DESTDIR)$(PREFIX)/lib/nvmecr/slurm
	for unit in service timer; do sed 's,@BIN@,$(PREFIX)/bin,' slurm/etc/nvmecr-reconcile.$$unit > $(DESTDIR)$(PREFIX)/lib/nvmecr/slurm/nvmecr-reconcile.$$unit; done

# With a user's eyes: what Slurm, the nodes and the job say.
.PHONY: run-cluster
run-cluster: all
	go test ./test/e2e -run '^TestSlurmMelt$$' -v -count 1 -timeout 30m

.PHONY: run
run: all
	bin/nvmecr demo $(DEMOFLAGS)

# One package more than there are cores is tested at a time, since many tests wait: for a target that is gone, for a time-out.
AT_ONCE := -p $(shell expr $$(nproc) + 1)
# The packages whose tests take longest go first, so that none of them is left over for one core at the end. Ranks of test/e2e
# and test/apps sleep while they wait.
LONGEST := ./test/e2e ./test/apps ./microfs ./posixshim ./internal/store ./test/fabric

# The driver over SPDK is tested where that is installed, whatever is built.
TESTS      = "$(AT_ONCE) -vet off -timeout 2h $(LONGEST) ./..." "-C bench -vet off -timeout 2h ./..." $(if $(HAVE_SPDK),"-timeout 2h -tags spdk ./nvmf/spdk")
RACE_TESTS = "$(AT_ONCE) -vet off -timeout 2h -race -short $(RACE)" $(if $(HAVE_SPDK),"-timeout 2h -tags spdk -race -short ./nvmf/spdk")
TESTREPORT = export CGO_LDFLAGS="$(strip $(CGO_LDFLAGS) $(SPDK_PATHS))"; go run ./internal/testreport

# The tests use a mount point that does not exist on the machine.
.PHONY: nomount
nomount:
	@if [ -e /nvmecr ]; then echo "/nvmecr exists, which the tests use as a mount point that does not exist: remove it or rename it"; exit 1; fi

.PHONY: test
test: nomount all lint
	@$(TESTREPORT) $(TESTS)

.PHONY: race
race: nomount all
	@$(TESTREPORT) $(RACE_TESTS)

.PHONY: ci
ci: nomount all lint
	@$(TESTREPORT) $(TESTS) $(RACE_TESTS)

# What is installed is tested by `make test` from then on.
.PHONY: test-apps
test-apps: all build/versitygw
	@scripts/deps.sh apps
	@go run ./internal/testreport "-timeout 2h -count 1 ./drain/s3" "-timeout 2h -count 1 ./test/apps -large"

build/versitygw: internal/s3server/versitygw/go.mod
	go build -C internal/s3server/versitygw -o ../../../$@ github.com/versity/versitygw/cmd/versitygw

# The stages of the tests take this setting over.
.PHONY: test-nofuse
test-nofuse: all
	@NVMECR_FUSE=off go run ./internal/testreport "-timeout 2h -count 1 ./test/apps ./test/e2e"

# What cannot be had is skipped, and said.
.PHONY: interop
interop: all
	-@scripts/deps.sh interop
	@scripts/kernels.sh build/kernels
	@go run ./internal/testreport -levels 3 "-tags interop -timeout 2h -count 1 ./test/interop"

# Sets the shell's array "fuzz": the arguments of a `go test` for each fuzz test,
# since it takes no more than one, and $(1) of time. With more than a few
# attempts to make an input smaller that would be all it does.
fuzz-tests = mapfile -t fuzz < <(grep -ro --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | sort | \
	sed -E 's|^(.*)/[^/]*:func (.*)|-run ^$$ -fuzz ^\2$$ -fuzztime $(1) -fuzzminimizetime 20x \1|; s,^(.*) [.]/bench(/|$$),-C bench \1 ./,')

.PHONY: lint
lint:
	@out=$$(gofmt -l $$(for m in $(MODULES); do go list -C $$m -f '{{.Dir}}' ./...; done)); \
	if [ -n "$$out" ]; then echo "gofmt wants to change:" $$out; exit 1; fi
	for m in $(MODULES); do go vet -C $$m -tags interop ./...; go run -C $$m $(STATICCHECK) -tags interop ./...; done
	go vet -tags mutants ./internal/mutant ./oplog ./microfs
	go run $(STATICCHECK) -tags openmpi ./mpiwrap ./cmd/libnvmecr
	if pkg-config --exists spdk_nvme spdk_env_dpdk; then \
		go vet -tags spdk ./nvmf/spdk && go run $(STATICCHECK) -tags spdk ./nvmf/spdk; fi
	shellcheck .ci/run $$(find . -name '*.sh' -not -path './build/*')

# Without the file systems to compare with it goes on, and says so.
.PHONY: bench
bench: all
	-@scripts/deps.sh bench
	bin/nvmecr bench goals

.PHONY: soak
soak: all
	go run ./test/soak -minutes $(MINUTES) $(SOAKFLAGS)
	go run ./test/soak -minutes $(MINUTES) -tree $(SOAKFLAGS)
	go run ./test/soak -minutes $(MINUTES) -tree -mirrors $(SOAKFLAGS)
	go run ./test/soak -minutes $(MINUTES) -copies $(SOAKFLAGS)

.PHONY: faults
faults: all
	go test ./test/fabric -v -timeout 3h -args -all

.PHONY: mutants
mutants: all
	go test ./test/mutants -v -count 1 -timeout 2h -args -all

.PHONY: exhaustive
exhaustive: all
	EXECUTE=all go test ./posixshim -run '^TestExecutes$$' -count 1
	go test ./microfs -run '^TestExhaustive$$' -v -timeout 24h -crash-all

.PHONY: fuzz
fuzz:
	go test ./microfs -run '^TestCrashLong$$' -v -timeout 2h -crash-images $(CRASHES)
	go test ./tree -run '^TestCrash$$' -v -timeout 2h -images 20
	@$(call fuzz-tests,$(FUZZTIME)); go run ./internal/testreport "$${fuzz[@]}"

.PHONY: clean
clean:
	rm -rf bin build
