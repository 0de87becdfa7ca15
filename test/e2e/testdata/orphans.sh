#!/bin/sh
# orphans.sh DIRECTORY PYTHON: processes that outlive the process which has forked them write files of rank $R to /nvmecr. DIRECTORY is
# another directory. Prints the files.
R=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
export R DONE="$1/done.$R"

# ended waits for a process: the next one is killed, and files that it has opened for others are lost.
ended() {
	while [ ! -e "$DONE.$1" ]; do sleep 0.01; done
	rm "$DONE.$1"
}

# A script that leaves a background job.
# shellcheck disable=SC2016 # the script's own variables
sh -c '(while kill -0 $$ 2> $DONE.errors; do sleep 0.01; done; echo late $R > /nvmecr/late.$R; cat /nvmecr/first.$R >> /nvmecr/late.$R; echo > $DONE.script) &
echo first $R > /nvmecr/first.$R'
ended script

# A daemon, and a worker whose parent is killed.
cat > "$DONE.py" <<'END'
import os, signal, sys, threading, time
how, rank, done = sys.argv[1], os.environ["R"], os.environ["DONE"]
with open(f"/nvmecr/{how}.{rank}", "w") as f:
    f.write(f"{how} {rank}\n")
def add(i):
    for _ in range(10):
        with open(f"/nvmecr/{how}.{rank}", "a") as f:
            f.write(f"thread {i} of {rank}\n")
def work(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    threads = [threading.Thread(target=add, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    open(f"{done}.{how}", "w").close()
    os._exit(0)
if how == "daemon":
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        work(parent)
    os._exit(0)
parent = os.getpid()
if os.fork() == 0:
    work(parent)
os.kill(parent, signal.SIGKILL)
END
"$2" "$DONE.py" daemon
ended daemon
"$2" "$DONE.py" worker
ended worker
cd /nvmecr || exit
cat "late.$R"
sort "daemon.$R" | uniq -c | sed 's/^ *//'
sort "worker.$R" | uniq -c | sed 's/^ *//'
