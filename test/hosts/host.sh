#!/bin/bash
# host.sh DIR NAME: the first process of a host, in namespaces of its own. It lives until its input ends.
set -e
dir=$1 name=$2 own=$1/hosts
mount --bind "$dir" /mnt
mount -t tmpfs -o mode=1777 none /tmp
mkdir -p "$dir"
mount --move /mnt "$dir"
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs none /run
mount --bind "$own/hosts" /etc/hosts
mount --bind "$own/$name.machine" /etc/machine-id
mount --bind "$own/$name.boot" /proc/sys/kernel/random/boot_id
hostname "$name"
ip link set lo up
echo ready
while read -r _; do :; done
