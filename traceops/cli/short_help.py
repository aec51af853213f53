"""What each command's --help shows first: two examples and the options that people need; --help-all has the rest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ShortHelp:
    """examples: whole command lines. options: those to show; all where there are few anyway (empty)."""

    examples: tuple[str, str]
    options: tuple[str, ...] = ()


SHORT = {
    "run": ShortHelp(
        ("traceops run -- torchrun --nproc-per-node 4 train.py", "traceops run --nproc 2 -- train.py --lr 3"),
        ("--nproc", "--name", "--out", "--overwrite", "--skip-first", "--active", "--env", "--against", "--dry-run",
         "--kill-on-hang", "--live"),
    ),
    "analyze": ShortHelp(
        ("traceops analyze profile/train", "traceops analyze traces/ -o report"),
        ("--output", "--select", "--format", "--fail-on", "--evidence", "--jobs", "--quiet"),
    ),
    "compare": ShortHelp(
        ("traceops compare profile/main profile/pr", "traceops compare --base a1 a2 a3 --head b1 b2 b3"),
        ("--base", "--head", "--threshold", "--config", "--strict", "--force", "--output", "--format", "--quiet"),
    ),
    "capture": ShortHelp(("traceops capture", "traceops capture profile/train --active 8")),
    "live": ShortHelp(("traceops live profile/train", "traceops live profile/train --metrics 9464")),
    "top": ShortHelp(("traceops top", "traceops top profile/train --sort pace")),
    "baseline": ShortHelp(
        ("traceops baseline save profile/main", "traceops baseline history --store s3://bucket/baselines")
    ),
    "diagnose": ShortHelp(("traceops diagnose profile/train", "traceops diagnose job.log")),
    "doctor": ShortHelp(
        ("traceops doctor", "traceops doctor --from nvidia-smi.txt nccl.log"),
        ("--from", "--output", "--no-tests", "--quick", "--gpus", "--nproc", "--fail-on", "--json", "--verbose",
         "--quiet"),
    ),
    "view": ShortHelp(("traceops view profile/train", "traceops view profile/train --around TO-S001")),
    "open": ShortHelp(("traceops open profile/train", "traceops open reports/train --port 8000")),
    "query": ShortHelp(
        ('traceops query profile/train "select count(*) from slice"',
         'traceops query timeline.pftrace.gz "select name, dur from slice order by dur desc limit 5"')
    ),
    "show": ShortHelp(("traceops show profile/train", "traceops show profile/train findings --json")),
    "explain": ShortHelp(("traceops explain TO-S001", "traceops explain TO-I")),
    "demo": ShortHelp(("traceops demo", "traceops demo -o /tmp/demo")),
    "completion": ShortHelp(('eval "$(traceops completion bash)"', 'eval "$(traceops completion zsh)"')),
    "mcp": ShortHelp(("traceops mcp", "claude mcp add traceops -- traceops mcp")),
    "memory": ShortHelp(
        ("traceops memory --nproc 8 --gpu H100 -- train.py", "traceops memory profile/train"),
        ("--nproc", "--gpu", "--capacity", "--params", "--rank", "--strategy", "--no-changes", "--json"),
    ),
    "scale": ShortHelp(
        ("traceops scale profile/n1 profile/n2 profile/n4",
         "traceops scale --nproc 1,2,4 --global-batch-size 64 -- train.py"),
        ("--nproc", "--global-batch-size", "--repeat", "--price", "--predict", "--name", "--output", "--quiet"),
    ),
    "sweep": ShortHelp(
        ("traceops sweep --vary-arg batch-size=8,16,32 --nproc 2 -- train.py",
         "traceops sweep --vary strategy=pytorch_ddp,zero3 --nproc 2"),
        ("--vary", "--vary-arg", "--budget", "--repeat", "--nproc", "--name", "--overwrite", "--dry-run"),
    ),
}  # fmt: skip


class HelpAll(argparse.Action):
    """--help-all: every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, help="list every option", default=argparse.SUPPRESS
        )

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        parser.shows_every_option = True  # type: ignore[attr-defined]  # ours
        parser.print_help()
        parser.exit()
