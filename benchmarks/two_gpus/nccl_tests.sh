#!/bin/bash
# all_reduce_perf for Hopper alone: SOURCE NCCL OUT. SOURCE = a checkout of NVIDIA/nccl-tests (tried with c2cb96f),
# NCCL = its folder (include, lib with libnccl.so.2), OUT = where the program goes
set -e
source=$1; nccl=$2; mkdir -p "$3"; out=$(cd "$3" && pwd); cd "$source/src"
cuda=${CUDA_HOME:-/usr/local/cuda}
flags="-ccbin g++ -gencode=arch=compute_90,code=sm_90 -std=c++17 -O2 -I$nccl/include -I. -I.. -I$cuda/include"
for f in all_reduce common ../verifiable/verifiable; do
  nvcc $flags -c $f.cu -o "$out/$(basename $f).o" & p="$p $!"
done
g++ -O2 -c timer.cc -o "$out/timer.o"
for one in $p; do wait $one; done
ln -sf "$nccl/lib/libnccl.so.2" "$out/libnccl.so"
nvcc $flags -o "$out/all_reduce_perf" "$out"/{all_reduce,common,verifiable,timer}.o -L"$out" -lnccl -Xlinker -rpath,"$nccl/lib" -lpthread -ldl -lrt
