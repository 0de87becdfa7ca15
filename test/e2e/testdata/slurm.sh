#!/usr/bin/env bash
# slurm.sh DIR PORT NODES: starts a controller and so many node daemons of Slurm on this machine, as
# whoever calls it, without munge and control groups. Everything is in DIR: etc/slurm.conf, logs, and the
# process ids in *.pid. PORT and those that follow it, one for each node, have to be free.
# A job that is queued again waits for as long as credentials live, two minutes where nothing else is said.
set -euo pipefail
dir=$1 port=$2 nodes=$3
host=$(hostname -s)
user=$(id -un)
mkdir -p "$dir"/{etc,state,log}
{ cat "$(dirname "$0")/slurm.conf"; cat <<C; } >"$dir/etc/slurm.conf"
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
SlurmctldPort=$port
AuthInfo=cred_expire=20
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/%n.log
C
for i in $(seq "$nodes"); do
	mkdir -p "$dir/spool/cn$i"
	echo "NodeName=cn$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=2 RealMemory=500"
done >>"$dir/etc/slurm.conf"
echo "PartitionName=main Nodes=cn[1-$nodes] Default=YES State=UP" >>"$dir/etc/slurm.conf"
slurmctld -f "$dir/etc/slurm.conf"
for i in $(seq "$nodes"); do
	slurmd -f "$dir/etc/slurm.conf" -N "cn$i"
done
# What there is to see when a job does not do what it should.
echo "tail -n 40 *.out $dir/log/*; squeue; ps axfo pid,stat,wchan:20,args" >"$dir/state.sh"
