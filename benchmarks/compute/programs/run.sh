#!/bin/bash
# run.sh OUT [NAME ...]: everything of this folder on one GPU in less than 10 minutes; OUT gets three files below 16 MB each.
# TOTAL: seconds for all. The parts that are left out when time is short are the last ones.
set -u
SECONDS=0
OUT=$(mkdir -p "$1" && cd "$1" && pwd)
shift
TOTAL=${TOTAL:-585}
HERE=$(cd "$(dirname "$0")" && pwd)
W=${W:-/tmp/compute-pairs}
PY=${PY:-python3}
mkdir -p "$W/counters"
exec > >(tee "$OUT/run.log") 2>&1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

left() { echo $((TOTAL - 25 - SECONDS)); }

pack() {
  trap - EXIT
  cd "$W" && tar cJf "$OUT/counters.tar.xz" counters attainable.json 2>/dev/null
  ls -l "$OUT"
}
trap pack EXIT
trap 'exit 143' TERM INT

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
$PY -m pip list 2>/dev/null | grep -iE '^(torch|transformers|timm|torchvision|torchaudio|torch-geometric|lightning|triton) '

timeout -k 3 "$(left)" $PY "$HERE/pairs.py" "$W" "$OUT/pairs.tar" --budget "${BUDGET:-400}" ${1:+--only "$@"}
echo "$SECONDS s: pairs ended with $?"
[ "$(left)" -gt 20 ] && timeout -k 3 "$(left)" $PY "$HERE/attainable.py" --seconds 50 > "$W/attainable.json"
echo "$SECONDS s: attainable ended with $?"
[ "$(left)" -gt 45 ] && timeout -k 3 "$(left)" $PY "$HERE/counters.py" "$W/counters"
echo "$SECONDS s: counters ended with $?"
