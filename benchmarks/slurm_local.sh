#!/usr/bin/env bash
# A Slurm of two nodes on this machine, each with a host name of its own; as root, with Debian's packages
# (apt-get install slurmctld slurmd slurm-client munge). Then, in the same shell:
#   export SLURM_CONF=$PWD/slurm.conf; srun -N2 --ntasks-per-node=1 traceops run --nproc 2 train.py
# benchmarks/slurm_local.sh FOLDER; what it started in that folder before is ended first. benchmarks/slurm_local.sh FOLDER stop
# ends it and starts nothing. The nodes share the file system; --gather is tried with an --out that has $(hostname) in it.
set -euo pipefail
folder=$(mkdir -p "${1:?a folder for its state}" && cd "$1" && pwd)
export SLURM_CONF=$folder/slurm.conf
for name in n1 n2 slurmctld munged; do
  if [ -e "$folder/$name.pid" ]; then
    kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
  fi
done
sleep 1
if [ "${2:-}" = stop ]; then
  exit 0
fi
mkdir -p /run/munge "$folder"/{state,n1,n2}
if [ ! -e /etc/munge/munge.key ]; then
  (umask 077 && head -c 1024 /dev/urandom >/etc/munge/munge.key)
fi
chown -R munge: /run/munge /etc/munge
su -s /bin/sh munge -c 'munged --force'
cp /run/munge/munged.pid "$folder/munged.pid"
grep -q ' n1' /etc/hosts || echo '127.0.0.1 n1 n2' >>/etc/hosts
cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmdPidFile=$folder/%n.pid
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=15
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=17001 CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=17002 CPUs=2 RealMemory=4000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
CONF
slurmctld -c -f "$SLURM_CONF"
for node in n1 n2; do
  unshare --uts sh -c "hostname $node; exec slurmd -f '$SLURM_CONF' -N $node"
done
sleep 3
srun -N2 --ntasks-per-node=1 hostname
