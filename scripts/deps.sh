#!/usr/bin/env bash
# deps.sh [bench|apps|interop]: installs what this machine lacks. With Debian's or
# Ubuntu's apt-get and root or sudo it installs; without it names the packages and
# stops. It prints nothing when all is there.
#
#   deps.sh          what building, testing and the demonstration need
#   deps.sh apps     and what `make test-apps` tests besides
#   deps.sh bench    what the benchmark compares with
#   deps.sh interop  what `make interop` runs in virtual machines
set -euo pipefail

if ! command -v go >/dev/null && [ ! -x /usr/local/go/bin/go ]; then
	echo "deps: Go is missing: install Go 1.26 or newer from https://go.dev/dl" >&2
	exit 1
fi

# One line for each need: a command that succeeds when it is met, then the
# Debian packages that meet it. The benchmark can mount only as root.
needs() {
	if [ "${1-}" = bench ]; then
		cat <<-'END'
			test "$(id -u)" -ne 0 || command -v mkfs.xfs  : xfsprogs
			test "$(id -u)" -ne 0 || command -v mkfs.ext4 : e2fsprogs
		END
		return
	fi
	if [ "${1-}" = interop ]; then
		cat <<-'END'
			command -v qemu-system-x86_64     : qemu-system-x86
			command -v busybox                : busybox-static
			command -v nvme                   : nvme-cli
			command -v mkfs.ext4              : e2fsprogs
			command -v mkfs.xfs               : xfsprogs
			command -v depmod                 : kmod
			command -v xz                     : xz-utils
			command -v keyctl                 : keyutils
		END
		return
	fi
	cat <<-'END'
		command -v gcc                    : gcc
		test -e /usr/include/stdio.h      : libc6-dev
		command -v pkg-config             : pkg-config
		command -v gfortran               : gfortran
		command -v mpirun.openmpi         : openmpi-bin
		command -v mpicc.openmpi          : libopenmpi-dev
		command -v mpirun.mpich           : mpich
		pkg-config --exists mpich         : libmpich-dev
		command -v lmp                    : lammps
		command -v python3                : python3
		command -v shellcheck             : shellcheck
		command -v g++                    : g++
		command -v sqlite3                : sqlite3
		command -v rsync                  : rsync
		command -v musl-gcc               : musl-tools
		command -v fusermount3            : fuse3
		pkg-config --exists openssl       : libssl-dev
	END
	[ "${1-}" = apps ] || return 0
	cat <<-'END'
		module numpy                      : python3-numpy
		module h5py                       : python3-h5py
		module netCDF4                    : python3-netcdf4
		module mpi4py                     : python3-mpi4py
		module h5py._debian_h5py_mpi      : python3-h5py-mpi
		module torch                      : python3-torch
		pkg-config --exists hdf5-serial   : libhdf5-dev
		pkg-config --exists netcdf        : libnetcdf-dev
		pkg-config --exists hdf5-openmpi  : libhdf5-openmpi-dev
		pkg-config --exists hdf5-mpich    : libhdf5-mpich-dev
		pkg-config --exists pnetcdf       : libpnetcdf-dev
		pkg-config --exists netcdf-mpi    : libnetcdf-mpi-dev
		command -v gmx                    : gromacs
		command -v octave-cli             : octave
		command -v cmake                  : cmake
	END
}

# module NAME succeeds where the distribution's Python has it; importing it would take seconds.
module() {
	/usr/bin/python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1"
}

# What only root has in its PATH counts, too.
PATH=$PATH:/usr/sbin:/sbin
missing=()
while IFS=: read -r check packages; do
	if ! eval "$check" >/dev/null 2>&1; then
		read -ra names <<<"$packages"
		missing+=("${names[@]}")
	fi
done < <(needs "$@")
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
	sudo=(sudo -n)
fi
if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; }; then
	echo "deps: cannot install packages here (that takes apt-get, and root or a sudo that asks no password)." >&2
	echo "deps: missing, by their Debian names: ${missing[*]}" >&2
	exit 1
fi

echo "deps: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1
}
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
	tail -n 20 "$log" >&2
	echo "deps: apt-get failed, see above; install ${missing[*]} and run make again" >&2
	exit 1
fi
