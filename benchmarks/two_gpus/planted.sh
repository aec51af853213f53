#!/bin/bash
# Planted faults and sentences without an example, on two GPUs: see README.md. CPU=1 runs the same lines small, on a CPU.
SECONDS=0
BUDGET=${BUDGET:-420}
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUT=${OUT:-/tmp/out}/planted
W=${W:-/tmp/planted-work}
PK=$W/packed
PY=${PY:-python3}
mkdir -p "$OUT" "$W" "$PK"
cd "$ROOT" || exit 1
export PYTHONPATH=$ROOT:$PYTHONPATH PYTHONUNBUFFERED=1
exec > >(tee "$OUT/planted.log") 2>&1
JOBS=$(nproc)
if [ -n "$CPU" ]; then
  PL="--device cpu --backend gloo"; G8="--device cpu --backend gloo"; G2=$G8; CPUARGS="--device cpu --backend gloo"; RANKS=${RANKS:-8}
else
  PL=""; RANKS=24; LARGE=--large
  G8="--backend gloo --layers 4 --dim 256 --vocab 2048 --seq 2048 --batch 32 --steps 5"
  G2="--backend gloo --layers 4 --dim 256 --vocab 2048 --seq 4096 --batch 64"
  CPUARGS="--device cpu --backend gloo --layers 4 --dim 256 --vocab 1024 --seq 128 --batch 8"
fi
RESERVE=${RESERVE:-62}   # for packing at the end
left() { echo $((BUDGET - RESERVE - SECONDS)); }
# most N: N seconds, or what is left
most() { local have; have=$(left); [ "$have" -lt 1 ] && have=1; echo $((have < $1 ? have : $1)); }
say() { echo "=== $(printf %4d $SECONDS) s: $*"; }
# part NAME SECONDS COMMAND...: with a time limit, and only where enough of the budget is left
part() {
  local name=$1 most=$2 have; shift 2
  have=$(left)
  if [ "$have" -lt 12 ]; then say "$name left out, $have s left"; return 1; fi
  [ "$have" -lt "$most" ] && most=$have
  local begun=$SECONDS
  PLANTED_PART=$name.$$ timeout -k 5 "$most" "$@" > "$W/$name.log" 2>&1
  local code=$?
  [ $code -eq 124 ] || [ $code -eq 137 ] && stray "$name"
  say "$name: exit $code after $((SECONDS - begun)) s (limit $most)"
  grep -v "^\[W\|Warning\|^USDT\|^$" "$W/$name.log" | tail -${TAIL:-6} | cut -c1-400
  cp "$W/$name.log" "$PK/log.$name.txt"
  return $code
}
# stray NAME: end what that part left, by the mark in its environment.
stray() {
  local one pids=""
  for one in /proc/[0-9]*; do
    grep -qz "^PLANTED_PART=$1\.$$\$" "$one/environ" 2>/dev/null && pids="$pids ${one#/proc/}"
  done
  [ -n "$pids" ] && { say "$1: ending$pids"; kill -9 $pids 2>/dev/null; }
}
# make NAME SECONDS NPROC "CASES" "OPTIONS": planted/runs.py, which begins no case too late
make() {
  local most=$2 have; have=$(left); [ "$have" -lt "$most" ] && most=$have
  part "$1" "$most" $ENVS $PY -m benchmarks.planted.runs make --nproc $3 --out "$W/$1" --no-score --budget-s $((most - 8)) --case-s 30 --start-s 45 --only $4 -- $5
}
finish() {
  trap - EXIT
  say "packing"
  for one in planted g8 hog g2 cpu8 slow_half_input slow_half_host mesh doctor doctor_bound; do stray $one; done
  [ -n "$BACK" ] && wait $BACK
  for root in hog g2 mesh cpu8 runs; do [ -d "$W/$root" ] && echo "$W/$root"; done > "$W/roots"
  local room=$((BUDGET - SECONDS - 20)); [ $room -lt 20 ] && room=20
  # all roots at once, so that no core waits
  (while read -r root; do timeout -k 3 $room $PY -m benchmarks.two_gpus.bring pack "$root" --to "$PK" --jobs $((JOBS / 2 + 1)) & done < "$W/roots"; wait) > "$W/pack.log" 2>&1
  say "packed"; cut -c1-300 "$W/pack.log"
  wrong=""
  for root in planted g8 hog g2 cpu8; do
    [ -d "$W/$root/reports" ] || continue
    timeout -k 3 20 $PY -m benchmarks.planted.runs score "$W/$root" --keep-reports > "$PK/score.$root.md" 2>&1
    echo "--- $root"; cut -c1-420 "$PK/score.$root.md"
    wrong="$wrong,$(grep '\*\*no\*\*' "$PK/score.$root.md" | sed "s/^| \([a-z_0-9]*\) .*/$root.\1/" | tr '\n' ',')"
  done
  $PY -m benchmarks.two_gpus.bring choose "$PK" --mb "${MB:-13}" --first "$wrong"
  tar -C "$PK" -cf - -T "$PK/chosen.txt" | xz -2 > "$OUT/planted.tar.xz"
  ls -la "$OUT"
  say "end"
}
trap finish EXIT

say "machine"
{ nproc; lscpu | grep -i "model name\|numa\|hypervisor"; nvidia-smi -L; nvidia-smi topo -m; ls /sys/class/infiniband; cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
  $PY -c "import torch; print(torch.__version__, torch.cuda.nccl.version() if torch.cuda.is_available() else '')"; } 2>&1 | tee "$PK/machine.txt"

# 1. The planted set on two ranks, over NCCL.
SET="healthy_ddp slow_gpu slow_loader slow_host slow_copy late_step healthy_fsdp2 slow_fsdp2 sockets no_p2p one_bucket usual_buckets tiny_buckets item_sync uneven_batch slow_loader_all slow_gpu_small healthy_zero1 slow_no_p2p starved_slow host_beside_input other_precision other_attention"
[ -n "$CPU" ] && SET="healthy_ddp slow_no_p2p other_attention"
TAIL=30 make planted ${ONLY_PLANTED:-165} 2 "$SET" "$PL"
# Its reports and packing beside what follows, with a part of the cores.
nice -n 19 timeout -k 5 "$(most 150)" $PY -m benchmarks.two_gpus.bring pack "$W/planted" --to "$PK" --jobs $((JOBS > 16 ? JOBS - 8 : 2)) ${ONLY_PLANTED:+--no-cut} > "$W/pack.planted.log" 2>&1 &
BACK=$!
touch "$W/made"
[ -n "$ONLY_PLANTED" ] && { wait $BACK; exit 0; } # for visit.sh, which gives its seconds

# 2. nccl-tests, with NVLink and without.
NCCL=$($PY -c "import nvidia.nccl, os; print(list(nvidia.nccl.__path__)[0])" 2>/dev/null)
[ -n "$CPU" ] && NCCL=${NCCL_FOLDER:-$NCCL}
NCCL_TESTS=${NCCL_TESTS:-$HERE/nccl-tests}
export_nccl() { LD_LIBRARY_PATH=$NCCL/lib:$LD_LIBRARY_PATH "$@"; }
if [ -d "$NCCL_TESTS/src" ]; then
  part build 60 bash "$HERE/nccl_tests.sh" "$NCCL_TESTS" "$NCCL" "$W/nccl-build" && cp "$W/nccl-build/all_reduce_perf" "$W/"
fi
test_nccl() { # NAME, environment...
  local name=$1; shift
  export_nccl env "$@" NCCL_TOPO_DUMP_FILE="$PK/nccl_$name.topo.xml" timeout -k 3 30 "$W/all_reduce_perf" -b 8 -e 512M -f 4 -g 2 -n 10 -w 3 > "$PK/nccl_$name.txt" 2>&1
  export_nccl env "$@" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV timeout -k 3 30 "$W/all_reduce_perf" -b 64M -e 512M -f 2 -g 2 -n 5 -w 2 > "$PK/nccl_${name}_info.txt" 2>&1
  say "nccl-tests $name"; grep -A40 "out-of-place" "$PK/nccl_$name.txt" | tail -16
  $PY -m traceops doctor --from "$PK/nccl_$name.txt" -o "$W/doctor_$name" 2>&1 | head -12
}
nvidia-smi topo -m > "$PK/topo.txt" 2>&1
if [ -x "$W/all_reduce_perf" ] && [ "$(left)" -gt 40 ]; then
  test_nccl plain A=1
  test_nccl no_p2p NCCL_P2P_DISABLE=1
  test_nccl sockets NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
fi

# 2b. What the doctor says of this machine, and from the cores of one node if GPUs are on two.
part doctor 30 $PY -m traceops doctor --no-tests -o "$W/doctor"
cp "$W/doctor/doctor.json" "$PK/doctor.json" 2>/dev/null
NODES=$(for bus in $(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | tr A-Z a-z | sed 's/^0000//'); do cat /sys/bus/pci/devices/$bus/numa_node; done | sort -u | grep -c '^[0-9]')
echo "NUMA nodes of the GPUs: $NODES"
if [ "$NODES" -gt 1 ]; then
  part doctor_bound 30 taskset -c "$(cat /sys/devices/system/node/node0/cpulist)" $PY -m traceops doctor --no-tests -o "$W/doctor_bound"
  cp "$W/doctor_bound/doctor.json" "$PK/doctor_bound.json"
fi

# 3. Four ranks on each GPU over gloo: groups of slow ranks.
MANY="healthy_many group_batch group_gpu group_copy group_mixed group_input group_host"
[ -n "$CPU" ] && MANY="healthy_many group_mixed"
ENVS="env GLOO_SOCKET_IFNAME=lo"
TAIL=15 make g8 100 8 "$MANY" "$G8"
# The same without a fault of its own, while another process works on the second GPU.
if [ "$(left)" -gt 35 ]; then
  $PY -m benchmarks.two_gpus.hog 1 45 & HOG=$!
  sleep 4
  make hog 40 8 healthy_many "$G8"
  kill $HOG 2>/dev/null; wait $HOG 2>/dev/null
fi

nice -n 19 timeout -k 5 "$(most 100)" $PY -m benchmarks.two_gpus.bring pack "$W/g8" --to "$PK" --jobs $((JOBS > 16 ? 14 : 2)) > "$W/pack.g8.log" 2>&1 &
BACK="$BACK $!"

# 4. Two ranks, each on its GPU, over gloo: to be read without run.json.
TWO="healthy_ddp slow_gpu slow_host slow_loader slow_copy uneven_batch"
[ -n "$CPU" ] && TWO="healthy_ddp slow_host"
TAIL=10 make g2 60 2 "$TWO" "$G2"

ENVS=
# 5. Many ranks on the cores alone: half of them slow.
wait $BACK; BACK=
say "packed the planted set and g8"; cut -c1-300 "$W/pack.planted.log" "$W/pack.g8.log"
for one in slow_half_input slow_half_host; do
  part $one 40 env CUDA_VISIBLE_DEVICES= GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 STEPS=16 $PY -m traceops run --nproc $RANKS --name $one --out "$W/runs/$one" --skip-first 1 --unprofiled 4 --warmup 1 --active 6 --no-log-files -- benchmarks/verdicts/faults.py $one
done
CP="group_host group_input"
[ -n "$CPU" ] && CP=group_host
ENVS="env CUDA_VISIBLE_DEVICES= GLOO_SOCKET_IFNAME=lo" make cpu8 45 8 "$CP" "$CPUARGS"

# 6. A pipeline that is uneven, and a late host beside that.
part mesh 60 $PY -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.meshes.train --cases 1f1b8_light,1f1b8_uneven_host --out "$W/mesh" $LARGE

exit 0
