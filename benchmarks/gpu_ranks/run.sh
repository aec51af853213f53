#!/bin/bash
# Traces of programs of several ranks as people make them, on one GPU: NCCL takes ranks for hosts of their own where
# NCCL_HOSTID differs, and sends over sockets. See programs/train.py. CPU=1: tiny, over gloo on a CPU.
set -u
SECONDS=0
BUDGET=${BUDGET:-330}
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/out}
W=${W:-/tmp/gpu-ranks}
PY=${PY:-python3}
mkdir -p "$OUT" "$W"
exec > >(tee "$OUT/ranks.log") 2>&1
export PYTHONPATH=$HERE/../gpu_traces/programs${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
export MASTER_ADDR=127.0.0.1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 OMP_NUM_THREADS=2
unset TEARDOWN_CUPTI

source "$HERE/../pack_traces.sh"
trap 'pack_traces "$OUT/ranks.tar" 14300000 45 truths.*.json' EXIT
trap 'exit 143' TERM INT

PORT=29701
for name in ${NAMES:-late_host ddp_healthy uneven_batch rank_0_evaluates late_and_uneven fsdp2_late late_host_rank_0_traced experts_uneven hf_ddp ddp_again tiny_buckets evaluates_and_late pipeline_uneven stack_on_rank_0 zero_and_objects fsdp_clips windows_shifted ddp_accumulates hook}; do
  left=$((BUDGET - SECONDS - 30))
  [ "$left" -lt 12 ] && { echo "no time for $name"; continue; }
  [ "$left" -lt 45 ] || left=45
  PORT=$((PORT + 1)) pids=""
  for rank in 0 1; do
    (cd "$HERE/programs" && RANK=$rank LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=$PORT NCCL_HOSTID=host$rank \
      timeout -k 2 "$left" $PY train.py "$W" "$name" > "$W/$name.$rank.out" 2>&1) & pids="$pids $!"
  done
  for pid in $pids; do wait "$pid"; rc=$?; done
  echo "$SECONDS s: $name ended with $rc"; tail -qn 2 "$W/$name".?.out
done
find "$W/traces" -type f -printf '%s %P\n' | sort -n
