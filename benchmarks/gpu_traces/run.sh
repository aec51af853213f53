#!/bin/bash
# Traces of GPU programs as people make them, and their truths: see make.py. CPU=1: tiny, on a CPU.
set -u
SECONDS=0
BUDGET=${BUDGET:-290}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/gpu-traces}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
exec > >(tee "$OUT/gtrace.log") 2>&1
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false TORCHINDUCTOR_CACHE_DIR=$W/inductor HF_HUB_OFFLINE=1
unset TEARDOWN_CUPTI

pack() { # each trace by itself, the small ones first, as many as fit
  trap - EXIT
  cd "$W" || return
  mkdir -p packed
  find traces -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | XZ_OPT=-6 timeout -k 5 45 xargs -P 16 -I{} tar cJf packed/{}.tar.xz traces/{}
  local total=0 size one
  rm -f "$OUT/gtrace.tar"
  tar cf "$OUT/gtrace.tar" truths.jsonl
  for one in $(ls -rS packed); do
    size=$(stat -c %s "packed/$one")
    total=$((total + size))
    if [ "$total" -lt 14300000 ]; then tar rf "$OUT/gtrace.tar" "packed/$one"; else echo "left out: $one, $size bytes"; fi
  done
  echo "$SECONDS s: packed $(stat -c %s "$OUT/gtrace.tar") bytes"
}
trap pack EXIT
trap 'exit 143' TERM INT

nproc; $PY -c 'import torch, sys; print(sys.version, torch.__version__, torch.version.cuda, torch.cuda.device_count())'
nvidia-smi --query-gpu=name,clocks.sm,utilization.gpu,memory.used,driver_version --format=csv,noheader 2>/dev/null
$PY -m pip list 2>/dev/null | grep -iE '^(transformers|accelerate|lightning|pytorch-lightning|torchvision|triton) '

for group in ${GROUPS_:-plain:60 host:50 input:75 frames:60 compiled:90 cold:25 lightning:35 accelerate:30 stranger:30 middle:20}; do
  name=${group%:*} most=${group#*:}
  left=$((BUDGET - SECONDS - 32))
  [ "$left" -lt 10 ] && { echo "no time for $name"; continue; }
  [ "$left" -lt "$most" ] && most=$left
  (cd "$HERE" && timeout -k 3 "$most" $PY make.py "$W" "$name")
  echo "$SECONDS s: $name ended with $?"
done
find "$W/traces" -type f -printf '%s %P\n' | sort -n
