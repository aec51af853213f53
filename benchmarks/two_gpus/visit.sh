#!/bin/bash
# What one GPU cannot show, in one go: see README.md. CPU=1 runs the same lines small, over gloo.
set -u
SECONDS=0
BUDGET=${BUDGET:-580}
PACKING=${PACKING:-55}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/visit-work}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
cd "$HERE/../.." || exit 1
exec > >(tee "$OUT/visit.log") 2>&1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo
unset TEARDOWN_CUPTI
[ -z "${CPU:-}" ] || export SMALL=1 DEVICE=cpu OMP_NUM_THREADS=1 STEPS=24
GPUS=$($PY -c 'import torch; print(torch.cuda.device_count())')
RANKS=2; [ "$GPUS" = 1 ] && RANKS=1
ONLY=${ONLY:-compute planted harm hangs compare} # the parts of this visit, in this order
say() { echo "=== $SECONDS s: $*"; }
room() { echo $((BUDGET - PACKING - SECONDS)); }
# part NAME SECONDS: of visit.py, at most so long, and within the budget
part() {
  local most; most=$(room)
  [ "$most" -gt "$2" ] && most=$2
  if [ "$most" -lt 25 ]; then say "$1: left out, $most s left"; return; fi
  say "$1, at most $most s"
  timeout -k 5 $((most + 3)) $PY -m benchmarks.two_gpus.visit "$1" "$W/$1" --until "$most" --ranks $RANKS
  say "$1: ended with $?"
}
source "$HERE/../pack_traces.sh"
pack() {
  trap - EXIT
  say "packing"
  [ -z "${PLANTED:-}" ] || { for _ in $(seq 20); do kill -0 "$PLANTED" 2>/dev/null || break; sleep 1; done; kill "$PLANTED" 2>/dev/null; }
  cd "$W" || return
  find compute compare -name '*.json.gz' -print0 | timeout 15 xargs -0 -r -P 16 -n 1 gunzip -f # xz packs text better
  mkdir -p small && cp --parents compute/*.json* compare/*.json small/ 2>/dev/null
  { echo small; ls -d compute/*.run harm hangs compute/*.fixed compute/timed compare/calibrate; ls -dtr compare/*.[0-9]; ls -d compute/*.sick; } 2>/dev/null > folders
  XZ_OPT=-4 packed_folders $((BUDGET + 8 - SECONDS > 10 ? BUDGET + 8 - SECONDS : 10)) < folders
  sed 's|/|.|g; s|$|.tar.xz|' folders | into_tars 15300000 "$OUT"/visit.{1..3}.tar
  ls -lR "$OUT"
}
trap pack EXIT
trap 'exit 143' TERM INT

nproc; uptime; df -h "$W" /dev/shm
$PY -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.nccl.version() if torch.cuda.is_available() else "")'
nvidia-smi --query-gpu=index,name,driver_version,clocks.sm,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
$PY -c 'import traceops.capture.light._cupti, traceops.traces._native; print("compiled parts are there")'

planted() {
  [ "$GPUS" = 1 ] || [ "$(room)" -le 60 ] && return
  local most; most=$(room)
  [ "$most" -gt "${PLANTED_S:-165}" ] && most=${PLANTED_S:-165}
  say "planted, at most $most s"
  ONLY_PLANTED=$most MB=13 BUDGET=$((most + 212)) OUT=$OUT W=$W/planted-work bash "$HERE/planted.sh" > "$W/planted.log" 2>&1 &
  PLANTED=$!
  while kill -0 $PLANTED 2>/dev/null && [ ! -e "$W/planted-work/made" ]; do sleep 1; done
  say "planted: made"
}
hangs() {
  local most; most=$(room)
  [ "$most" -gt "${HANGS_S:-170}" ] && most=${HANGS_S:-170}
  [ "$most" -le 30 ] && return
  timeout -k 5 "$most" $PY -m benchmarks.hangs.runs make "$W/hangs" --nproc 2 --parallel "${LANES:-3}" --strategies ddp --faults "${FAULTS:-sleep,op,gpu,kill,skip}" --no-score
  say "hangs: ended with $?"
}
# One after the other: with thirty processes that start at once, NCCL took 40 s to start.
for one in $ONLY; do
  case $one in
    compute) part compute "${COMPUTE_S:-165}" ;;
    planted) planted ;;
    harm) RANKS=2 part harm "${HARM_S:-170}" ;;
    hangs) hangs ;;
    compare) part compare "${COMPARE_S:-150}" ;;
  esac
done
