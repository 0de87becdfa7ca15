#!/usr/bin/env bash
# kernels.sh DIRECTORY: puts kernels to boot in a virtual machine below the
# directory: Debian's own, and the newer one of its backports, which has NVMe's
# in-band authentication. They are unpacked, not installed, and no setting of
# the system's apt is changed. What is there already is left as it is; what
# cannot be had is said, and is no failure.
set -euo pipefail

mkdir -p "$1"
cd "$1"

# The suites are asked for by a configuration of our own, where the system's are.
options=(-q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/apt"
	-o Dir::State::lists="$PWD/apt/lists" -o Dir::Cache="$PWD/apt/cache" -o APT::Sandbox::User="$(id -un)")

# fetch SUITE NAME: unpacks its kernel as NAME.
fetch() {
	local package
	[ ! -e "$2/boot" ] || return 0
	rm -rf apt "$2" "$2.new"
	mkdir -p apt/lists/partial apt/cache/archives/partial
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
		"$mirror" "$1" /usr/share/keyrings/debian-archive-keyring.gpg >apt/suite.sources
	if ! apt-get "${options[@]}" update >apt/log 2>&1; then
		echo "kernels: $1: $(tail -n 1 apt/log)" >&2
		return 0
	fi
	package=$(apt-cache "${options[@]}" depends linux-image-amd64 | sed -n 's/.*Depends: *\(linux-image-[^ ]*\).*/\1/p' | head -n 1)
	echo "kernels: downloading $package from $1" >&2
	if ! (cd apt && apt-get "${options[@]}" download "$package" >log 2>&1); then
		echo "kernels: $1: $(tail -n 1 apt/log)" >&2
		return 0
	fi
	dpkg-deb -x apt/linux-image-*.deb "$2.new"
	PATH=$PATH:/sbin:/usr/sbin depmod -b "$2.new" "${package#linux-image-}"
	mv "$2.new" "$2"
	rm -rf apt
}

release() { sed -n "s/^$1=//p" /etc/os-release; }
if [ "$(release ID)" != debian ]; then
	echo "kernels: this is not Debian, whose packages these are; unpack kernels below $PWD by hand (NAME/boot, NAME/lib)" >&2
	exit 0
fi
mirror=$(apt-get indextargets --format "\$(CODENAME) \$(REPO_URI)" 'Created-By: Packages' |
	sed -n "s/^$(release VERSION_CODENAME) //p" | head -n 1)
fetch "$(release VERSION_CODENAME)" system
fetch "$(release VERSION_CODENAME)-backports" backports
