"""A pull request that makes a training slower, measured as CI would: the origin of examples/pull-request-comment.md.

python -m benchmarks.compare.pull_request --out /tmp/pr --nproc 2      # GPUs where there are any, else gloo
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import ROOT

TRAIN = '''"""Trains a small transformer with DDP."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

on_gpu = torch.cuda.is_available()
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
torch.manual_seed(0)
dim, layers, batch, tokens = (2048, 8, 8, 1024) if on_gpu else (128, 4, 8, 64)
block = nn.TransformerEncoderLayer(dim, dim // 64, 4 * dim, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(block, layers, enable_nested_tensor=False).to(device)
model = DistributedDataParallel(model, device_ids=[rank] if on_gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
data = torch.randn(batch, tokens, dim, device=device)
for step in range(60):
    with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
        loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
'''
CHANGE = (
    "model = DistributedDataParallel(model, device_ids=[rank] if on_gpu else None)",
    "# one bucket: fewer, larger messages use the network better\n"
    "model = DistributedDataParallel(model, device_ids=[rank] if on_gpu else None, bucket_cap_mb=10_000)",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=4)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    (args.out / "train.py").write_text(TRAIN)
    for command in (["init", "-q", "-b", "main"], ["add", "train.py"], ["commit", "-q", "-m", "train"]):
        run(["git", "-c", "user.name=example", "-c", "user.email=example@example.com", *command], args.out)
    (args.out / "train.py").write_text(TRAIN.replace(*CHANGE))
    traceops = [sys.executable, "-m", "traceops"]
    run([*traceops, "run", f"--nproc={args.nproc}", f"--repeat={args.repeat}", "--against=main",
         "--skip-first=20", "--unprofiled=20", "--active=6", "--", "train.py"], args.out)  # fmt: skip
    return run([*traceops, "compare", "profile/train", "--format=html,md,json,junit,sarif,csv"], args.out, (0, 1))


def run(command: list[str], folder: Path, allowed: tuple[int, ...] = (0,)) -> int:
    """Run a command in a folder; ends the program where its exit code is not among the allowed."""
    root = str(ROOT)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    code = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
    if code not in allowed:
        sys.exit(f"{' '.join(command[:6])} … ended with exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
