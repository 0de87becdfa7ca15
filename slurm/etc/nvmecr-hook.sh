#!/bin/sh
# nvmecr-hook.sh: PrologSlurmctld, EpilogSlurmctld, Prolog, Epilog and TaskProlog of Slurm, all of them. Settings that differ from
# those of `nvmecr slurm --help` are set here.
#export NVMECR_STATE=/var/spool/nvmecr
#export SLURM_CONF=/etc/slurm/slurm.conf
#export NVMECR_INVENTORY=/etc/nvmecr/site.yaml
case $SLURM_SCRIPT_CONTEXT in
prolog_slurmctld) hook=prolog-ctld ;;
epilog_slurmctld) hook=epilog-ctld ;;
prolog_slurmd) hook=prolog ;;
epilog_slurmd) hook=epilog ;;
prolog_task) hook=task-prolog ;;
*) exit 0 ;;
esac
# Slurm gives its hooks no PATH. nvmecr is beside this file, or where an installation has it:
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin}"
dir=$(dirname "$(readlink -f "$0")")
for program in "$dir/nvmecr" "$dir/../../../bin/nvmecr" "$dir/../../bin/nvmecr"; do
	[ -x "$program" ] || continue
	case $hook in *-ctld) exec "$program" slurm "$hook" ;; esac
	# A node whose Prolog or Epilog fails, or hangs, is taken out of service. Here it does neither, even if nvmecr does.
	timeout -k 5 60 "$program" slurm "$hook" || echo "nvmecr-hook.sh: $hook: status $?" >&2
	exit 0
done
echo "nvmecr-hook.sh: there is no nvmecr near $dir" >&2
case $hook in *-ctld) exit 1 ;; esac
