#!/bin/bash
# Copies between host and device, and whether their cures come true. CPU=1: tiny, on a CPU. At most BUDGET seconds.
set -u
SECONDS=0
BUDGET=${BUDGET:-86}
HERE=$(cd "$(dirname "$0")" && pwd)
export ROOT=${ROOT:-$PWD} OUT=${OUT:-/tmp/out} W=${W:-/tmp/copies-work} PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$HERE:$HERE/../gpu_traces:$ROOT${PYTHONPATH:+:$PYTHONPATH} TURN=$W/turn
PY=${PY:-python3}
mkdir -p "$OUT" "$W/runs"
exec > >(tee "$OUT/copies.log") 2>&1

pack() { # the truths, then as much as fits, the small ones first
  trap - EXIT
  cd "$W" || return
  mkdir -p packed
  { find traces -mindepth 1 -maxdepth 1 -type d; find runs -mindepth 1 -maxdepth 1 -type d; } 2>/dev/null | XZ_OPT=-6 timeout -k 2 14 xargs -P 16 -I{} bash -c 'one={}; tar cJf packed/${one//\//.}.tar.xz $one'
  local total=0 size one
  tar cf "$OUT/copies.tar" truths.jsonl
  for one in $(ls -rS packed); do
    size=$(stat -c %s "packed/$one")
    total=$((total + size))
    if [ "$total" -lt 4700000 ]; then tar rf "$OUT/copies.tar" "packed/$one"; else echo "left out: $one, $size bytes"; fi
  done
  echo "$SECONDS s: packed $(stat -c %s "$OUT/copies.tar") bytes"
}
trap pack EXIT
trap 'exit 143' TERM INT

nproc; free -g | head -2
nvidia-smi --query-gpu=name,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,clocks.sm,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
timeout -k 2 42 $PY "$HERE/copies_alone.py" "$W" 32
echo "$SECONDS s: alone ended with $?"

# Each by itself on the GPU; what starts a process goes on beside the one before.
for one in large_batches:sick:70 same_stream:sick:80 features_out:sick:70 host_late:sick:80 saved_on_host:sick:44; do
  IFS=: read -r name way steps <<< "$one"
  timeout -k 2 $((BUDGET - SECONDS > 26 ? BUDGET - SECONDS - 16 : 10)) $PY -m traceops run --nproc 1 --out "$W/runs/$name.$way" -- "$HERE/copies_one.py" "$name" "$way" "$steps" > "$W/runs/$name.$way.txt" 2>&1 &
  sleep "${APART:-3}"
done
wait $(jobs -p | tr '\n' ' ')
for one in "$W"/runs/*.txt; do echo "== $one"; tail -4 "$one"; mv "$one" "${one%.txt}/" 2>/dev/null; done
echo "$SECONDS s: runs ended"
