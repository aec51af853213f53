#!/bin/bash
# What observing costs, and whether ending CUPTI is safe and of use: see README.md. CPU=1 runs it small, on a CPU.
SECONDS=0
BUDGET=${BUDGET:-440}
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUT=${OUT:-/tmp/out}/cost
PY=${PY:-python3}
export WORK; WORK=$(mktemp -d)
R=$WORK/results
mkdir -p "$OUT" "$R"
cd "$ROOT" || exit 1
export PYTHONPATH=$ROOT:$PYTHONPATH OMP_NUM_THREADS=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=$WORK/inductor
LOG=$OUT/cost.log
: > "$LOG"
RESERVE=18 # for packing
unset TEARDOWN_CUPTI TRACEOPS_CAPTURE
say() { echo "[$SECONDS s] $*" | tee -a "$LOG"; }
below() { local one; for one in $(pgrep -P "$1"); do below "$one"; echo "$one"; done; }
finish() {
  trap - EXIT
  say "packing"
  kill $(below $$) 2>/dev/null
  cat "$R"/*.jsonl > "$R/all.jsonl" 2>/dev/null
  for f in "$R"/*.err; do [ -s "$f" ] || rm -f "$f"; done
  (cd "$WORK" && find . -name run.json | head -40 | tar cf "$R/runs.tar" -T - 2>/dev/null)
  tar cJf "$OUT/cost.tar.xz" -C "$R" . 2>/dev/null
  rm -rf "$WORK"
  say "done"
}
trap finish EXIT
trap 'exit 143' TERM INT
# part NAME SECONDS GPU CORES COMMAND...: within the budget, on its own cores where there are 32
part() {
  local name=$1 limit=$2 gpu=$3 cores=$4 room=$((BUDGET - RESERVE - SECONDS)) pin="" began=$SECONDS rc
  shift 4
  [ "$room" -lt 8 ] && { say "$name: no time left"; return; }
  [ "$limit" -gt "$room" ] && limit=$room
  [ "$(nproc)" -ge 32 ] && pin="taskset -c $cores"
  local here=(); [ "$gpu" = all ] || here=(env "CUDA_VISIBLE_DEVICES=$gpu")
  "${here[@]}" timeout -k 5 "$limit" $pin "$@" > "$R/$name.jsonl" 2> "$R/$name.all"
  rc=$?
  grep -v "^USDT" "$R/$name.all" | tail -c 6000 > "$R/$name.err"; rm -f "$R/$name.all"
  echo "{\"part\": \"rc\", \"name\": \"$name\", \"rc\": $rc, \"took_s\": $((SECONDS - began))}" >> "$R/$name.jsonl"
  say "$name: exit $rc after $((SECONDS - began)) s"
}
GPUS=$($PY -c 'import torch; print(torch.cuda.device_count())')
LAST=1; [ "$GPUS" = 1 ] && LAST=0 # the second GPU, or the only one
t() { [ -n "$CPU" ] && echo 6 || echo "$1"; } # seconds of measuring
{ nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader; $PY -c 'import torch; print(torch.__version__, torch.version.cuda)'; nproc; } >> "$LOG" 2>&1

# 1. Timing: a GPU each, or in turn on the only one.
alone() { [ "$GPUS" = 1 ] && wait; }
( part step_end_llama 80 0 0-7 "$PY" -m benchmarks.two_gpus.step_end "llama:$(t 40)" "3:$(t 15)" "1:$(t 8)" ) &
alone
( part step_end_resnet 80 $LAST 16-23 "$PY" -m benchmarks.two_gpus.step_end "${RESNET:-resnet}:$(t 40)" "6:$(t 20)" ) &
wait
( part cost_light 50 0 0-7 "$PY" -m benchmarks.two_gpus.observe_pairs light "$(t 40)" ) &
alone
( part cost_light_graph 35 $LAST 16-23 "$PY" -m benchmarks.two_gpus.observe_pairs graph "$(t 25)" ) &
wait

# 2. Safety: each case alone in its process, four lanes at a time.
lane() {
  local gpu=$1 cores=$2 pair case limit; shift 2
  for pair in "$@"; do
    case=${pair%:*}; limit=40; [ "$case" = compile ] && limit=60
    part "safety_${case}_${pair#*:}" $limit "$gpu" "$cores" "$PY" -m benchmarks.two_gpus.cupti_safety "$case" "${pair#*:}"
  done
}
each() { [ -n "$CPU" ] || for one in graph_before graph_after graph_both graph_in; do echo "$one:$1"; done; }
lane 0 0-5 compile:detach compile:none &
lane 0 6-11 later:none later:today later:detach threads:detach threads:none &
lane $LAST 12-17 $(each detach) windows:none &
lane $LAST 18-23 $(each none) windows:detach &
lane 0 24-27 quick:detach quick:none windows:today &
lane $LAST 28-31 threads:today quick:today &
wait

# 3. A rank a GPU.
RANKS=2; [ "$GPUS" = 1 ] && RANKS=1
two() { part "$1" "$2" all 0-31 "$PY" -m torch.distributed.run --standalone --nproc-per-node $RANKS "${@:3}"; }
two models 115 -m benchmarks.two_gpus.behind_models "$(t 30)" ${RESNET:-resnet} llama
two ddp_both 70 -m benchmarks.two_gpus.cupti_ddp both
two ddp_none 60 -m benchmarks.two_gpus.cupti_ddp none
