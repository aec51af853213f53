#!/bin/bash
# Traces of GPU programs as people make them, and their truths: see programs/make.py. CPU=1: tiny, on a CPU.
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

source "$HERE/../pack_traces.sh"
trap 'pack_traces "$OUT/gtrace.tar" 14300000 45 truths.jsonl' EXIT
trap 'exit 143' TERM INT

nproc; $PY -c 'import torch, sys; print(sys.version, torch.__version__, torch.version.cuda, torch.cuda.device_count())'
nvidia-smi --query-gpu=name,clocks.sm,utilization.gpu,memory.used,driver_version --format=csv,noheader 2>/dev/null
$PY -m pip list 2>/dev/null | grep -iE '^(transformers|accelerate|lightning|pytorch-lightning|torchvision|triton) '

for group in ${GROUPS_:-plain:60 host:50 input:75 frames:60 compiled:90 cold:25 lightning:35 accelerate:30 stranger:30 middle:20}; do
  name=${group%:*} most=${group#*:}
  left=$((BUDGET - SECONDS - 32))
  [ "$left" -lt 10 ] && { echo "no time for $name"; continue; }
  [ "$left" -lt "$most" ] && most=$left
  (cd "$HERE/programs" && timeout -k 3 "$most" $PY make.py "$W" "$name")
  echo "$SECONDS s: $name ended with $?"
done
find "$W/traces" -type f -printf '%s %P\n' | sort -n
