#!/usr/bin/env bash
# Installs what building, testing and the demonstration need and this machine
# lacks. With Debian's or Ubuntu's apt-get and root or sudo it installs; without
# it names the packages and stops. It prints nothing when all is there.
set -euo pipefail

if ! command -v go >/dev/null && [ ! -x /usr/local/go/bin/go ]; then
	echo "deps: Go is missing: install Go 1.26 or newer from https://go.dev/dl" >&2
	exit 1
fi

# One line for each need: a command that succeeds when it is met, then the
# Debian packages that meet it.
needs() {
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
	END
}

missing=()
while IFS=: read -r check packages; do
	if ! eval "$check" >/dev/null 2>&1; then
		read -ra names <<<"$packages"
		missing+=("${names[@]}")
	fi
done < <(needs)
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
