#!/bin/bash
# Copies between host and device, and whether their cures come true. CPU=1: tiny, on a CPU. At most BUDGET seconds.
set -u
SECONDS=0
BUDGET=${BUDGET:-86}
HERE=$(cd "$(dirname "$0")" && pwd)
export ROOT=${ROOT:-$PWD} OUT=${OUT:-/tmp/out} W=${W:-/tmp/copies-work} PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$HERE/programs:$HERE/../gpu_traces/programs:$ROOT${PYTHONPATH:+:$PYTHONPATH} TURN=$W/turn
PY=${PY:-python3}
mkdir -p "$OUT" "$W/runs"
exec > >(tee "$OUT/copies.log") 2>&1

source "$HERE/../pack_traces.sh"
trap 'pack_traces "$OUT/copies.tar" 4700000 14 truths.jsonl' EXIT
trap 'exit 143' TERM INT

nproc; free -g | head -2
nvidia-smi --query-gpu=name,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,clocks.sm,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
timeout -k 2 42 $PY "$HERE/programs/alone.py" "$W" 32
echo "$SECONDS s: alone ended with $?"

# Each by itself on the GPU; what starts a process goes on beside the one before.
for one in large_batches:sick:70 same_stream:sick:80 features_out:sick:70 host_late:sick:80 saved_on_host:sick:44; do
  IFS=: read -r name way steps <<< "$one"
  timeout -k 2 $((BUDGET - SECONDS > 26 ? BUDGET - SECONDS - 16 : 10)) $PY -m traceops run --nproc 1 --out "$W/runs/$name.$way" -- "$HERE/programs/one.py" "$name" "$way" "$steps" > "$W/runs/$name.$way.txt" 2>&1 &
  sleep "${APART:-3}"
done
wait $(jobs -p | tr '\n' ' ')
for one in "$W"/runs/*.txt; do echo "== $one"; tail -4 "$one"; mv "$one" "${one%.txt}/" 2>/dev/null; done
echo "$SECONDS s: runs ended"
