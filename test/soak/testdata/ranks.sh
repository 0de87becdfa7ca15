#!/bin/sh
# ranks.sh N COMMAND...: N ranks without MPI. One that is killed, or gives
# up because a call failed, is started again.
n=$1
shift

rank() {
	while :; do
		PMI_RANK=$1 PMI_SIZE=$n
		export PMI_RANK PMI_SIZE
		shift
		"$@"
		code=$?
		set -- "$PMI_RANK" "$@"
		case $code in
		137) ;;
		5 | 75) sleep 0.2 ;;
		*) return $code ;;
		esac
	done
}

# shell COMMAND... NAME appends lines to a file of the mount, a command for each, and notes those of which the command says that it is done.
shell() {
	line=0
	while [ ! -e "$3/stop" ]; do
		line=$((line + 1))
		if echo "$6-$line" >>"$2/shared/shell.$5"; then
			echo "$5 $6-$line" >>"$SOAK_SHARED/shell"
		fi
		sleep 0.05
	done
}

shells=
if [ -n "$SOAK_SHARED" ]; then
	for i in 1 2; do
		shell "$@" "$$-$i" 2>>"$SOAK_SHARED/said" &
		shells="$shells $!"
	done
fi

pids=
i=0
while [ "$i" -lt "$n" ]; do
	rank "$i" "$@" &
	pids="$pids $!"
	i=$((i + 1))
done
code=0
for pid in $pids; do
	wait "$pid" || code=$?
done
# shellcheck disable=SC2086
[ -z "$shells" ] || kill $shells
exit $code
