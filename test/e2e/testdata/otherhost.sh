#!/bin/sh
# otherhost.sh [-OPTION...] HOST COMMAND...: what ssh is to launchers of MPI. HOST is this machine with a name, and a /tmp, of its own;
# the directory in STAGE is there on both. Takes root.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
export host
# shellcheck disable=SC2016 # the inner shell expands it
exec unshare --mount --uts sh -ec '
	mount --bind "$STAGE" /mnt
	mount -t tmpfs none /tmp
	mkdir -p "$STAGE"
	mount --move /mnt "$STAGE"
	hostname "$host"
	eval exec "$*"' sh "$@"
