#!/bin/sh
# otherhost.sh [-OPTION...] HOST COMMAND...: what ssh is to launchers of MPI. HOST is this machine with a name, and a /tmp, of its own;
# the directory in STAGE is there on both, and so is this repository. Takes root.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
top=$(cd "$(dirname "$0")/../../.." && pwd)
export host top
# shellcheck disable=SC2016 # the inner shell expands it
exec unshare --mount --uts sh -ec '
	mount --rbind /tmp /mnt
	mount -t tmpfs none /tmp
	for dir in "$STAGE" "$top"; do
		case $dir in /tmp/*)
			mkdir -p "$dir"
			mount --bind "/mnt/${dir#/tmp/}" "$dir" ;;
		esac
	done
	umount -l /mnt
	hostname "$host"
	eval exec "$*"' sh "$@"
