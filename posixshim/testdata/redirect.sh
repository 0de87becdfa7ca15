#!/bin/sh
# Runs programs whose standard streams are files below $1. The shell has not used the mount before.
d=$1
shell=$2
$shell -c "cat > $d/in" <<END
one
two
END
$shell -c "echo first > $d/log"
$shell -c "exec echo second >> $d/log"
$shell -c "cat < $d/in >> $d/log"
$shell -c "sh -c 'echo out; echo error >&2' > $d/both 2>&1"
$shell -c "(echo a; echo b) > $d/sub; exec cat < $d/sub"
$shell -c "{ echo out; ls /missing; } > $d/out 2> $d/error | cat; wc -l < $d/error"
$shell -c "sh -c 'seq 1 2000; echo done >&2' 2> $d/e1 | sort -n > $d/sorted; tail -n 1 $d/sorted"
$shell -c "seq 1 50000 | tee $d/tee | tail -n 1 > $d/last; wc -l < $d/tee"
$shell -c "for i in 1 2 3; do echo \$i; done > $d/loop; while read -r x; do echo got \$x; done < $d/loop"
$shell -c "exec sh -c 'exit 7' > $d/seven"
echo "status $?"
$shell -c "exec sh -c 'kill -TERM \$\$' > $d/killed"
echo "status $?"
$shell -c "exec /missing > $d/none" 2>/dev/null
echo "status $?"
$shell -c "exec 3> $d/three; echo to three >&3; sh -c 'echo child >&3'; exec cat $d/three"
bash -c "exec 200>>$d/log 400>>$d/log; echo 200 >&200; bash -c 'echo high >&200; echo higher >&400'"
cat "$d/log" "$d/both" "$d/out" "$d/e1" "$d/last"
ls "$d"
