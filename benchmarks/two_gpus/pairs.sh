#!/bin/bash
# Ten programs on pairs of GPUs, by themselves and under `traceops run` in turn, and planted troubles: see README.md. NAMES: which, and in
# what order, one a line. Without GPUs the planted program is tiny, over gloo.
set -u
SECONDS=0
BUDGET=${BUDGET:-575}
PACKING=${PACKING:-60}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/on-pairs}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
cd "$HERE/../.." || exit 1
exec > >(tee "$OUT/pairs.log") 2>&1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
unset TEARDOWN_CUPTI OMP_NUM_THREADS

source "$HERE/../pack_traces.sh"
trap 'pack_runs "$OUT" $((PACKING - 15))' EXIT
trap 'exit 143' TERM INT

nproc; $PY -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.nccl.version() if torch.cuda.is_available() else "")'
nvidia-smi --query-gpu=index,name,clocks.sm,temperature.gpu,memory.used --format=csv,noheader 2>/dev/null
nvidia-smi topo -m 2>/dev/null
lscpu | grep -E 'Model name|NUMA|Socket'
env | grep -E '^(NCCL|TORCH|OMP|CUDA)' | sort
$PY -c 'import traceops.capture.light._cupti, traceops.traces._native; print("compiled parts are there")'
LEFT=$((BUDGET - SECONDS - PACKING))
names=()
[ -z "${NAMES:-}" ] || mapfile -t names <<<"$NAMES"
timeout -k 15 $((LEFT + 15)) $PY -m benchmarks.two_gpus.on_pairs --work "$W" ${SOURCES:+--sources "$SOURCES"} ${SITE:+--site "$SITE"} --until "$LEFT" "${names[@]}"
echo "$SECONDS s: ended with $?"
tail -n 3 "$W"/*.*/out*.txt 2>/dev/null | cut -c1-200 | grep -v '^$'
