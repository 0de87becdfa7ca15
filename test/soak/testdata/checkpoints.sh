#!/bin/sh
# checkpoints.sh CONTENTS DIR RANKS TREE: a job that writes and reads checkpoints. The files DIR/do.1, DIR/do.2 and so on say what it does, one after the
# other; it answers with a line on standard output, the number and the highest exit status of a rank.
#
#   write STEP     each rank writes a file, and where all have one tree its part of a file of all
#   read STEP      each rank compares them with CONTENTS/STEP: 1 is wrong, 2 is an error
#   remove STEP
#   end 0
contents=$1 dir=$2 ranks=$3 tree=$4 verb=${5-} step=${6-}
mount=/nvmecr

# all writes the part of this rank.
all() {
	dd if="$from/all" of="$mount/ck.$step.all" bs=$(($(wc -c <"$from/all") / ranks)) count=1 skip="$PMI_RANK" seek="$PMI_RANK" conv=notrunc status=none
}

from=$contents/$step
case $verb in
write)
	cp "$from/$PMI_RANK" "$mount/ck.$step.$PMI_RANK" || exit 2
	[ "$tree" = false ] || all || exit 2
	exit
	;;
read)
	cmp "$from/$PMI_RANK" "$mount/ck.$step.$PMI_RANK" || exit
	[ "$tree" = false ] && exit
	other=$(((PMI_RANK + 1) % ranks))
	cmp "$from/$other" "$mount/ck.$step.$other" && cmp "$from/all" "$mount/ck.$step.all"
	exit
	;;
remove)
	rm -f "$mount/ck.$step.$PMI_RANK" "$mount/ck.$step.all"
	exit
	;;
esac

trap : USR1
number=0
while :; do
	number=$((number + 1))
	until [ -e "$dir/do.$number" ]; do sleep 0.05; done
	read -r verb step <"$dir/do.$number"
	[ "$verb" != end ] || break
	pids=
	for rank in $(seq 0 $((ranks - 1))); do
		PMI_SIZE=$ranks PMI_RANK=$rank sh "$0" "$contents" "$dir" "$ranks" "$tree" "$verb" "$step" &
		pids="$pids $!"
	done
	status=0
	for pid in $pids; do
		wait "$pid"
		of=$?
		[ $of -le $status ] || status=$of
	done
	echo "$number $status"
done
