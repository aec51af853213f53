#!/bin/bash
# run.sh OUT [NAME ...]: everything of this folder on one GPU in less than 10 minutes; OUT gets at most 8 files below 16 MB each.
# TOTAL: seconds for all. The parts that are left out when time is short are the last ones.
set -u
SECONDS=0
OUT=$(mkdir -p "$1" && cd "$1" && pwd)
shift
TOTAL=${TOTAL:-585}
HERE=$(cd "$(dirname "$0")" && pwd)
W=${W:-/tmp/compute-pairs}
PY=${PY:-python3}
mkdir -p "$W/traces" "$W/counters"
exec > >(tee "$OUT/run.log") 2>&1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 TORCHINDUCTOR_CACHE_DIR=$W/inductor

left() { echo $((TOTAL - 25 - SECONDS)); }

source "$HERE/../../pack_traces.sh"
pack() {
  trap - EXIT
  cd "$W" || return
  cat truth.jsonl failures.jsonl > "$OUT/truth.jsonl" 2>/dev/null
  tar cJf "$OUT/counters.tar.xz" counters attainable.json 2>/dev/null
  find traces -name '*.gz' -print0 | xargs -0 -r -P 16 -n 1 gunzip -f # xz packs text better
  find traces -mindepth 1 -maxdepth 1 -type d | sort | XZ_OPT=-4 packed_folders 40
  ls packed | into_tars 15300000 "$OUT"/pairs.{1..4}.tar
  ls -l "$OUT"
}
trap pack EXIT
trap 'exit 143' TERM INT

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
$PY -m pip list 2>/dev/null | grep -iE '^(torch|transformers|timm|torchvision|torchaudio|torch-geometric|lightning|triton) '

BUDGET=${BUDGET:-400} timeout -k 3 "$(left)" $PY "$HERE/pairs.py" "$W" "$@"
echo "$SECONDS s: pairs ended with $?"
[ "$(left)" -gt 20 ] && timeout -k 3 "$(left)" $PY "$HERE/attainable.py" --seconds 50 > "$W/attainable.json"
echo "$SECONDS s: attainable ended with $?"
[ "$(left)" -gt 45 ] && timeout -k 3 "$(left)" $PY "$HERE/counters.py" "$W/counters"
echo "$SECONDS s: counters ended with $?"
