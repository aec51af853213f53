"""A project to be put into git, and git."""

import subprocess

SCRIPT = """
import argparse, time
import torch, torch.distributed as dist
import pkg
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", default="lr.txt")
options = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=float(open(options.lr).read()))
for step in range(options.steps):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if options.steps > 100:
        time.sleep(0.02)
print("ran", pkg.VERSION, "with", open(options.lr).read())
dist.destroy_process_group()
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "thing"
version = "1"
[tool.setuptools]
packages = ["pkg"]
"""


def git(folder, *arguments):
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
