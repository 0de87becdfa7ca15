#!/bin/sh
# sweep.sh STEPS KILLAT RANK...: runs RANK again and again, and kills it at its
# first call that sends something, at its second, and so on until it gets
# through; then lets it read back once more. Prints how many calls there were.
SOAK_STEPS=$1
export SOAK_STEPS
killat=$2
shift 2
n=1
while "$killat" "$n" "$@"; code=$?; [ $code -eq 137 ]; do
	n=$((n + 1))
done
echo $((n - 1))
[ $code -eq 0 ] || exit $code
SOAK_STEPS=0 "$@"
