#!/bin/bash
# The monitor on two GPUs: jobs with NCCL, NVLink's counters, and what it costs: see README.md. CPU=1 runs the same lines over gloo.
set -u
SECONDS=0
BUDGET=${BUDGET:-585}
PACKING=${PACKING:-12}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/monitor-work}
PY=${PY:-python3}
CORES=${CORES:-0-15} # halves of them for the two programs whose cost is measured
mkdir -p "$OUT" "$W"
cd "$HERE/../.." || exit 1
exec > >(tee "$OUT/monitor.log") 2>&1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo
unset TEARDOWN_CUPTI
[ -z "${CPU:-}" ] || export OMP_NUM_THREADS=1
say() { echo "=== $SECONDS s: $*"; }
room() { echo $((BUDGET - PACKING - SECONDS)); }
pack() {
  trap - EXIT
  [ -z "${COSTS:-}" ] || kill $COSTS 2>/dev/null
  cd "$W" || return
  $PY -m benchmarks.live.cost --table cost.*.jsonl
  find live -name '*.pt.trace.json*' -delete 2>/dev/null
  XZ_OPT=-1 timeout -k 2 12 tar cJf "$OUT/monitor.tar.xz" --exclude='*.rows' . || echo "not packed whole"
  say "packed $(stat -c %s "$OUT/monitor.tar.xz") bytes"
}
trap pack EXIT
trap 'exit 143' TERM INT

nproc; uptime
$PY -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.nccl.version() if torch.cuda.is_available() else "")'
nvidia-smi --query-gpu=index,name,driver_version,clocks.sm,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
$PY -c 'import traceops.capture.light._cupti, traceops.traces._native; print("compiled parts are there")'

# 1. Jobs, one after the other; what is below waits for them.
COST_S=${COST_S:-205}
most=$((BUDGET - PACKING - COST_S - 20 - SECONDS))
say "jobs, at most $most s"
taskset -c "$CORES" timeout -k 5 $((most + 8)) $PY -m benchmarks.live.gpu --out "$W/live" --budget "$most" ${JOBS:+--only "$JOBS"}
say "jobs: ended with $?"

# 2.
most=$(($(room) - COST_S)); [ "$most" -gt 45 ] && most=45
taskset -c "$CORES" timeout -k 5 $((most > 15 ? most : 15)) $PY -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.two_gpus.nvlink "$W/nvlink.json"
say "nvlink: ended with $?"

# 3. A program on each GPU at a time, each with half of the cores.
first=${CORES%-*} last=${CORES#*-}
half=$(((first + last) / 2))
cost() { # GPU CORES NAME...
  local gpu=$1 cores=$2 most; shift 2
  most=$(($(room) - 3))
  CUDA_VISIBLE_DEVICES=$gpu taskset -c "$cores" timeout -k 5 $((most + 3)) $PY -m benchmarks.live.cost "$@" --seconds "${EACH_S:-60}" --budget "$most" --out "$W/cost.$gpu.jsonl" &
  COSTS="${COSTS:-} $!"
}
cost 0 "$first-$half" host_1 encoder_60 resnet50 loader encoder_300
cost 1 "$((half < last ? half + 1 : last))-$last" encoder_150 host_3 llama optimizer_loop host_10
wait $COSTS
say "cost: ended"
