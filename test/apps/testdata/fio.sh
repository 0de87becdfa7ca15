#!/bin/sh
# fio writes and verifies by each engine that uses the C library, with many requests in flight.
set -eu
cd "$1"
for engine in sync psync pvsync mmap posixaio libaio; do
	fio --name="$engine" --ioengine="$engine" --rw=randwrite --bs=16k --size=512k --iodepth=8 --randseed=7 \
		--verify=crc32c --verify_state_save=0 --fsync=16 --fallocate=none --output-format=terse --terse-version=3 >out 2>err
	cut -d ";" -f 3,5,6,47 out # its name, whether it failed, what was read and written
done
rm out err
