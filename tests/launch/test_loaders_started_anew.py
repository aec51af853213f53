"""Workers of data loaders that are spawned, or started by a fork server: the report names the line they are in."""

import json
import subprocess
import sys

import pytest
from started import environment

from traceops.pipeline.analyze import analyze

_TRAIN = """
import time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

def slow_collate(items):
    time.sleep(0.12)
    return torch.tensor(items)

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    method = ("spawn", "forkserver")[dist.get_rank()]
    items = [[1.0, 2.0, 3.0, 4.0]] * 80
    for batch in DataLoader(
        items, batch_size=2, num_workers=1, collate_fn=slow_collate, multiprocessing_context=method
    ):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_report_names_the_line_that_they_are_in(tmp_path):
    (tmp_path / "train.py").write_text(_TRAIN)
    run = [sys.executable, "-m", "traceops", "run", "--nproc", "2", "--out", "run", "--", str(tmp_path / "train.py")]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        [seen] = (tmp_path / "run" / f"rank_{rank}").glob("loader.0.*.jsonl")
        assert any("slow_collate" in str(json.loads(line)) for line in seen.read_text().splitlines())
    told = [f"{finding.rule}: {finding.message}" for finding in analyze(tmp_path / "run").findings]
    assert any(one.startswith("TO-I002") and "slow_collate (train.py:7)" in one for one in told), told
