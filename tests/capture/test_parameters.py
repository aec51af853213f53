"""What the collectives of DDP and FSDP carry, told by a rank that hangs: with torch, and with torches that differ."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from traceops.capture.responder import carried

SCRIPT = """
import json, os, torch, torch.distributed as dist
from torch import nn
from traceops.capture.responder import carried
from traceops.capture.responder import _groups
os.environ.update(RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert carried(_groups()) == []
inner = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64))
inner[1].bias.requires_grad_(False)
model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.02)
print(json.dumps(carried(_groups())))
del model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sharded = nn.Sequential(nn.Linear(64, 30), nn.Linear(30, 5))
fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
sharded(torch.randn(2, 64)).sum().backward()
print(json.dumps(carried(_groups())))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_models_of_ddp_and_fsdp(python):
    done = python("-c", SCRIPT, compiler=True)
    assert done.returncode == 0, done.stderr
    (ddp,), (fsdp,) = map(json.loads, done.stdout.splitlines())
    assert ddp == {
        "strategy": "ddp",
        "group": "0",
        "cap_bytes": int(0.02 * 1024 * 1024),
        "parameters": [["0.weight", 64_000, 256_000], ["1.weight", 4096, 16384]],
    }
    whole = 64 * 30 + 30 + 30 * 5 + 5
    assert (fsdp["strategy"], fsdp["elements"], fsdp["shard"], fsdp["count"]) == ("fsdp", whole, whole, 4)
    assert fsdp["names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_torch_that_has_it_otherwise_costs_only_that_model(monkeypatch):
    module = ModuleType("torch.nn.parallel.distributed")

    class DistributedDataParallel:
        process_group = "the world"
        parameters_to_ignore = frozenset({"frozen"})

        def __init__(self, cap):
            if cap is not None:
                self.bucket_bytes_cap = cap
            self.module = SimpleNamespace(named_parameters=lambda: iter(named))

    def parameter(size, trained=True):
        return SimpleNamespace(requires_grad=trained, numel=lambda: size, element_size=lambda: 4)

    named = [("a", parameter(10)), ("frozen", parameter(5)), ("b", parameter(20, trained=False)), ("c", parameter(30))]
    module.DistributedDataParallel = DistributedDataParallel
    monkeypatch.setitem(sys.modules, module.__name__, module)
    models = [DistributedDataParallel(cap) for cap in (100, None)]
    (row,) = carried({"the world": "0"})
    assert (row["group"], row["parameters"]) == ("0", [("a", 10, 40), ("c", 30, 120)]) and len(models) == 2
