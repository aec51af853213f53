#!/bin/bash
# Ten programs of several ranks on one GPU, by themselves and under `traceops run`: see truth.py. W: where they
# work, OUT: where results go, BUDGET: seconds. Without a GPU they are tiny, over gloo. NAMES: which, and in what order.
# TURNS=1: twice each at once and step by step in turn, see turns.py; TURNS=--one-rank: the programs of one rank.
set -u
SECONDS=0
BUDGET=${BUDGET:-525}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/gpu-ranks-programs}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
exec > >(tee "$OUT/ranks.log") 2>&1
export PYTHONDONTWRITEBYTECODE=1
unset TEARDOWN_CUPTI

source "$HERE/../pack_traces.sh"
trap 'pack_runs "$OUT" 45' EXIT
trap 'exit 143' TERM INT

nproc; $PY -c 'import torch; print(torch.__version__, torch.cuda.device_count())'
nvidia-smi --query-gpu=name,clocks.sm,temperature.gpu,memory.used,compute_mode --format=csv,noheader 2>/dev/null
$PY -c 'import traceops.capture.light._cupti, traceops.traces._native; print("compiled parts are there")'
cd "$HERE/../.." || exit 1
LEFT=$((BUDGET - SECONDS - 55))
how=runs
[ -z "${TURNS:-}" ] || how=turns
[ "${TURNS:-1}" = 1 ] && TURNS=
timeout -k 15 $((LEFT + 20)) $PY -m benchmarks.observed_ranks.$how --work "$W" --until "$LEFT" $TURNS ${NAMES:-}
echo "$SECONDS s: programs ended with $?"
