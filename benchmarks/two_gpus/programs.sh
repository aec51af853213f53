#!/bin/bash
# Ordinary programs by themselves and under `traceops run`, and one with many troubles: see README.md. ARGS=--cpu: on a CPU,
# ARGS=--one-gpu: programs of one rank. TRACES=1: the traces come back too, the smallest first, as many as there is room for.
set -u
SECONDS=0
BUDGET=${BUDGET:-570}
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUT=${OUT:-/tmp/out}/programs
W=${W:-/tmp/programs-work}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
cd "$ROOT" || exit 1
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
unset TEARDOWN_CUPTI OMP_NUM_THREADS
exec > >(tee "$OUT/programs.log") 2>&1

packed() { # packed EXCLUDED...: whether what is left fits
  local less=(--exclude='*.pt.trace.json*' --exclude='cache_*' --exclude=sources --exclude='*.pt' --exclude='*.bin.tmp' --exclude='*.rows') one
  for one in "$@"; do less+=("--exclude=$one"); done
  XZ_OPT='-3 -T8' timeout -k 5 40 tar cJf "$OUT/programs.tar.xz" "${less[@]}" . && [ "$(stat -c %s "$OUT/programs.tar.xz")" -lt 13500000 ]
}
pack() { # without traces and data; what CUPTI recorded by itself only if it fits
  trap - EXIT
  cd "$W" || return
  find runs -name '*.rows' -exec gzip -kf1 {} + 2>/dev/null
  packed 'again/clock/*.rows.gz' || packed '*.rows.gz' || packed '*.rows.gz' light.bin.gz
  [ -z "${TRACES:-}" ] || traces
  echo "$SECONDS s: packed $(stat -c %s "$OUT/programs.tar.xz") bytes"
}
traces() { # as plain text, which xz packs better
  local room=$((14300000 - $(stat -c %s "$OUT/programs.tar.xz"))) size one
  while read -r size one; do
    mkdir -p "$W/traces/$(dirname "$one")"
    zcat "$one" | timeout 20 xz -3 -T0 > "$W/traces/${one%.gz}.xz" || break
    room=$((room - $(stat -c %s "$W/traces/${one%.gz}.xz")))
    if [ "$room" -lt 0 ]; then rm "$W/traces/${one%.gz}.xz"; break; fi
  done < <(find runs -name '*.pt.trace.json.gz' -printf '%s %p\n' | sort -n)
  tar cf "$OUT/traces.tar" -C "$W" traces
}
trap pack EXIT
trap 'exit 143' TERM INT

nproc; uptime; $PY -c 'import torch; print(torch.__version__, torch.cuda.device_count())'
nvidia-smi --query-gpu=index,name,clocks.sm,temperature.gpu,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
env | grep -E '^(NCCL|TORCH|OMP|CUDA)' | sort
$PY -c 'import traceops.capture.light._cupti, traceops.traces._native; print("compiled parts are there")'
df -h /dev/shm /tmp; free -g | head -2; lscpu | grep -E 'Model name|NUMA|Socket|Thread'

# Packing needs 25 s; the programs, with their analyses, have the rest.
LEFT=$((BUDGET - SECONDS - 30))
timeout -k 15 $((LEFT + 5)) $PY -m benchmarks.observed.runs --work "$W" ${SOURCES:+--sources "$SOURCES"} ${SITE:+--site "$SITE"} --until "$LEFT" --ranks "${RANKS:-$($PY -c 'import torch; print(1 if torch.cuda.device_count() == 1 else 2)')}" ${ARGS:-}
echo "$SECONDS s: programs ended with $?"
