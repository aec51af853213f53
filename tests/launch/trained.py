"""Runs runners/train.py and saves, after every optimizer step, the loss over samples that no run trains on."""

import json
import runpy
import sys
from pathlib import Path

import torch

from traceops.core.installation import bundled
from traceops.train import strategies

target, script, *arguments = sys.argv[1:]
assert Path(script) == bundled("runners", "train.py")
tokens = torch.randint(64, (8, 17), generator=torch.Generator().manual_seed(9))
losses = []
found = strategies.strategy_class


def watched(name):
    class Watched(found(name)):
        def optimizer_step(self):
            super().optimizer_step()
            with torch.no_grad():
                losses.append(self.module(tokens[:, :-1], tokens[:, 1:]).item())
            if self.rank == 0:
                Path(target).write_text(json.dumps({"world_size": self.world_size, "losses": losses}))

    return Watched


strategies.strategy_class = watched
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
