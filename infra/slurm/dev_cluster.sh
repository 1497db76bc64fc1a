#!/usr/bin/env bash
# A real SLURM on this machine for tests and for trying things: infra/slurm/dev_cluster.sh up | down | conf.
#   up    install from Debian what is missing, start what is not running, wait until every node takes jobs; root on Debian 12, no systemd needed
#   down  cancel all jobs and stop what `up` started; the accounting stays, and so do the packages
#   conf  print the path that clients need: export SLURM_CONF=$(infra/slurm/dev_cluster.sh conf)
# Two nodes with one fake GPU each (NODES=1: one with both), partitions `gpu` (default, higher priority) and `spot` (preempted by it, with 20 s
# for a checkpoint). All of it is in one folder, SLURM_DEV_STATE, nothing in /etc; daemons listen on 127.0.0.1 only, munge and MariaDB on sockets.
set -euo pipefail
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LC_ALL=C.UTF-8
root=$(cd "$(dirname "$0")/../.." && pwd)
state=$(realpath -m "${SLURM_DEV_STATE:-$root/.posttrain/slurm}") nodes=${NODES:-2} gpus=2
export SLURM_CONF=$state/etc/slurm.conf
export MYSQL_UNIX_PORT=$state/run/mysql.sock
host=localhost  # the daemons' own host name, in a namespace of their own: they bind to what it resolves to

say() { echo "dev_cluster: $*"; }
fail() {
  say "$*" >&2
  tail -qn 5 "$state"/log/*.log >&2 2>/dev/null || true
  exit 1
}
wait_for() {  # SECONDS COMMAND…
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.1; done
}
pid_of() {  # NAME PROGRAM: of the process that `up` started and that lives; a zombie does not
  local pid; pid=$(cat "$state/run/$1.pid" 2>/dev/null) && [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$2" ]] &&
    ! grep -q '^State:.[ZX]' "/proc/$pid/status" && echo "$pid"
}
start() {  # NAME PROGRAM COMMAND…: unless it lives; every daemon writes $state/run/NAME.pid itself
  local name=$1 program=$2; shift 2
  pid_of "$name" "$program" >/dev/null && return
  rm -f "$state/run/$name.pid"
  (cd / && umask 022 && exec env -i PATH="$PATH" LC_ALL=$LC_ALL HOME=/root SLURM_CONF="$SLURM_CONF" MYSQL_UNIX_PORT="$MYSQL_UNIX_PORT" \
    setsid unshare --uts bash -c 'hostname "$0" && exec "$@"' "$host" "$@") </dev/null >>"$state/log/$name.start.log" 2>&1 9>&- &
  wait_for 20 pid_of "$name" "$program" || fail "$name does not start"
}
stop() {  # NAME PROGRAM
  local pid; pid=$(pid_of "$1" "$2") || return 0
  kill "$pid"
  wait_for 20 bash -c "! kill -0 $pid || grep -q '^State:.[ZX]' /proc/$pid/status" || { say "$1 does not stop and is killed"; kill -9 "$pid"; }
  rm -f "$state/run/$1.pid"
}

update_lists() { # apt waits for another's lock on packages, and not for one on their lists
  local said
  for _ in {1..60}; do
    said=$(apt-get update 2>&1) && return
    [[ $said == */lists/lock* ]] || break
    sleep 5
  done
  echo "$said"
  return 1
}

install_missing() {
  local missing=() package policy=/usr/sbin/policy-rc.d log
  for package in munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' $package 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]}"
  log=$(mktemp)
  # The packages would start daemons of their own.
  [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; trap 'rm -f /usr/sbin/policy-rc.d' RETURN EXIT; }
  { update_lists && DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || { tail "$log" >&2; fail "apt-get failed"; }
  rm -f "$log"
}

configure() {
  local memory tracking=proctrack/linuxproc task=task/none probe=/sys/fs/cgroup/freezer/probe.$$ number
  mkdir -p "$state"/{etc,log,run,ctld,dev,mysql}
  chmod 755 "$state" "$state"/{run,etc}
  for ((number = 0; number < gpus; number++)); do  # must be character devices; nobody opens them
    [[ -c $state/dev/gpu$number ]] || mknod -m 666 "$state/dev/gpu$number" c 240 $number || fail "mknod is refused: no CAP_MKNOD"
  done
  [[ -s $state/etc/munge.key ]] || (umask 077 && head -c 128 /dev/urandom >"$state/etc/munge.key")
  # Only cgroups find a daemonised child again, and limit memory.
  if [[ -d /sys/fs/cgroup/memory ]] && mkdir $probe 2>/dev/null; then
    rmdir $probe; tracking=proctrack/cgroup task=task/cgroup
  else
    say "no cgroups (v1) to write to: daemonised children outlive their job, and memory is not limited"
  fi
  memory=$(awk -v nodes="$nodes" '/^MemTotal/ {print int($2 / 1024 * 0.9 / nodes)}' /proc/meminfo)
  printf '%s\n' CgroupPlugin=cgroup/v1 CgroupMountpoint=/sys/fs/cgroup ConstrainRAMSpace=yes >"$state/etc/cgroup.conf"
  cat >"$state/etc/slurm.conf" <<CONF
ClusterName=dev
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool-%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log
ProctrackType=$tracking
TaskPlugin=$task
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,sched_interval=1,bf_interval=1
SlurmdTimeout=15
# As a real cluster has it: 30 s from SIGTERM to SIGKILL.
KillWait=30
# Ended jobs are soon known to the accounting only, so that its answers are tested too.
MinJobAge=2
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=26820
AccountingStoragePass=$state/run/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
CONF
  : >"$state/etc/gres.conf"
  for ((number = 0; number < nodes; number++)); do
    echo "NodeName=n$number NodeHostname=$host NodeAddr=127.0.0.1 Port=$((26830 + number)) CPUs=8 RealMemory=$memory" \
      "Gres=gpu:fake:$((gpus / nodes)) State=UNKNOWN" >>"$state/etc/slurm.conf"
    if ((nodes == 1)); then echo "NodeName=n0 Name=gpu Type=fake File=$state/dev/gpu[0-$((gpus - 1))]"
    else echo "NodeName=n$number Name=gpu Type=fake File=$state/dev/gpu$number"; fi >>"$state/etc/gres.conf"
    mkdir -p "$state/spool-n$number"
  done
  cat >>"$state/etc/slurm.conf" <<CONF
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=spot Nodes=ALL MaxTime=1-00:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
CONF
  (umask 077 && cat >"$state/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=26820
SlurmUser=root
PidFile=$state/run/slurmdbd.pid
LogFile=$state/log/slurmdbd.log
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
CONF
  )
}

start_all() {
  local number
  start munge munged munged --force --socket="$state/run/munge.socket" --key-file="$state/etc/munge.key" --pid-file="$state/run/munge.pid" \
    --log-file="$state/log/munge.log" --seed-file="$state/run/munge.seed"
  wait_for 10 munge --no-input --socket="$state/run/munge.socket" || fail "munge does not answer"
  if [[ ! -d $state/mysql/mysql ]]; then
    mariadb-install-db --no-defaults --user=root --datadir="$state/mysql" --auth-root-authentication-method=socket --auth-root-socket-user=root \
      --skip-test-db --skip-name-resolve >>"$state/log/mysql.start.log" 2>&1 || fail "the accounting's database cannot be made"
  fi
  start mysql mariadbd mariadbd --no-defaults --user=root --datadir="$state/mysql" --socket="$MYSQL_UNIX_PORT" --pid-file="$state/run/mysql.pid" \
    --skip-networking --innodb-buffer-pool-size=64M --innodb-log-file-size=64M --innodb-lock-wait-timeout=900 \
    --innodb-flush-log-at-trx-commit=0 --performance-schema=OFF --log-error="$state/log/mysql.log"
  wait_for 30 mariadb --no-defaults -S "$MYSQL_UNIX_PORT" -e 'select 1' || fail "the accounting's database does not answer"
  start slurmdbd slurmdbd slurmdbd
  wait_for 60 bash -c 'exec 3<>/dev/tcp/127.0.0.1/26820' || fail "slurmdbd does not listen"
  start slurmctld slurmctld slurmctld
  for ((number = 0; number < nodes; number++)); do start slurmd-n$number slurmd slurmd -N n$number; done
  wait_for 10 are_ready || for ((number = 0; number < nodes; number++)); do  # drained by hand, or by an old fault
    scontrol update nodename=n$number state=resume || true
  done
  wait_for 20 are_ready || fail "not all nodes are ready: $(sinfo -h -N -o '%N %T %E' | tr '\n' ';')"
  wait_for 20 bash -c 'sacctmgr -nP show cluster format=cluster | grep -qx dev' || fail "the cluster is not known to its accounting"
}
are_ready() { [[ $(sinfo -h -N -p gpu -o %T | grep -cxE 'idle|mixed|allocated') == "$nodes" ]]; }  # and not `idle*` or `drained`

stop_all() {
  local file
  if pid_of slurmctld slurmctld >/dev/null; then
    timeout 20 squeue -h -o %A | xargs -r timeout 20 scancel --signal=KILL --full 2>/dev/null || true
    timeout 20 squeue -h -o %A | xargs -r timeout 20 scancel 2>/dev/null || true
    wait_for 40 bash -c '[[ -z $(timeout 5 squeue -h) ]]' || say "jobs are left: $(timeout 5 squeue -h -o %A | tr '\n' ' ')"
  fi
  for file in "$state"/run/slurmd-*.pid; do [[ ! -e $file ]] || stop "$(basename "$file" .pid)" slurmd; done
  stop slurmctld slurmctld
  stop slurmdbd slurmdbd
  stop mysql mariadbd
  stop munge munged
  for file in /sys/fs/cgroup/{freezer,memory,cpuset,devices}/slurm_n[0-9]; do
    [[ ! -d $file ]] || find "$file" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

case ${1:-} in
  conf) echo "$SLURM_CONF"; exit ;;
  up | down) ;;
  *) sed -n '2,5s/^# //p' "$0" >&2; exit 2 ;;
esac
[[ $(id -u) == 0 ]] || fail "must be root: slurmd starts jobs as their owners"
[[ $state =~ ^[A-Za-z0-9_./-]+$ ]] || fail "SLURM cannot read '$state' in its configuration: name a plainer folder in SLURM_DEV_STATE"
((${#MYSQL_UNIX_PORT} < 100)) || fail "$state is too long a path for sockets: name a shorter one in SLURM_DEV_STATE"
mkdir -p "$state"
exec 9>"$state/lock"
flock --timeout 180 9 || fail "another $0 is at work"
if [[ $1 == down ]]; then stop_all; say "down"; exit; fi
install_missing
configure
start_all
say "up: $(slurmctld -V), $nodes nodes, $gpus fake GPUs; export SLURM_CONF=$SLURM_CONF"
