#!/bin/bash
# host.sh DIR NAME: the first process of a host, in namespaces of its own. It lives until its input ends.
set -e
dir=$1 name=$2 own=$1/hosts
top=$PWD # of the repository
while [ ! -e "$top/go.mod" ] && [ "$top" != / ]; do top=$(dirname "$top"); done
mount --rbind /tmp /mnt
mount -t tmpfs -o mode=1777 none /tmp
for kept in "$dir" "$top"; do
	if [ "$kept" != "${kept#/tmp/}" ]; then
		mkdir -p "$kept"
		mount --bind "/mnt/${kept#/tmp/}" "$kept"
	fi
done
umount -l /mnt
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs none /run
mount --bind "$own/hosts" /etc/hosts
mount --bind "$own/$name.machine" /etc/machine-id
mount --bind "$own/$name.boot" /proc/sys/kernel/random/boot_id
hostname "$name"
ip link set lo up
echo ready
while read -r _; do :; done
