#!/usr/bin/env bash
# start.sh BIN RUNTIME...: starts what was built in the directory BIN once: the commands, and
# below the preloaded library each of the runtimes (plain, openmpi, mpich), over memory. A library
# that cannot be loaded, or lacks a symbol, is found by who builds, not by who runs a job.
set -euo pipefail

bin=$(realpath "$1")
shift
unset "${!NVMECR_@}"

failed() {
	printf 'start: what was built in %s cannot be started: %s\n' "$bin" "$*" >&2
	exit 1
}

# The library by which a runtime's kind of process is known.
declare -A mpi=([plain]='' [openmpi]=libmpi.so.40 [mpich]=libmpich.so.12)

"$bin/nvmecr" version >/dev/null || failed nvmecr
"$bin/nvmecr-bench" --help >/dev/null || failed nvmecr-bench
for runtime; do
	library=${mpi[$runtime]}
	if [ -n "$library" ] && [ -n "$(LD_PRELOAD=$library sh -c : 2>&1)" ]; then
		echo "start: $library is not where the dynamic linker looks: libnvmecr-$runtime.so is not tried" >&2
		continue
	fi
	# shellcheck disable=SC2016 # the inner shell's
	LD_PRELOAD="$bin/libnvmecr.so $library" NVMECR_MOUNT=/nvmecr NVMECR_TARGET=mem:64M NVMECR_VIEW=rank \
		sh -c '[ -d /nvmecr ] && LD_PRELOAD= grep -q "/libnvmecr-$1[.]so" /proc/$$/maps' sh "$runtime" ||
		failed "libnvmecr-$runtime.so"
done
