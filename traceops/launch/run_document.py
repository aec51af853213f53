"""run.json as `traceops run` writes it: when the ranks start, and when they have ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from traceops.capture.environment import environment_that_matters, git_state, software_versions
from traceops.capture.joined import Unrecorded, unrecorded
from traceops.capture.manifest import RankManifest, write_json
from traceops.capture.merged_manifest import merge
from traceops.core.run_lock import Launcher
from traceops.launch.ended_run import EndedRun
from traceops.launch.plan import Plan


def write_run(plan: Plan, env: Mapping[str, str], started: int, run: EndedRun | None = None) -> None:
    """Write it, as far as is known: without `run`, that it has begun. started: Unix time, ns."""
    ranks = [] if run is None else list(run.ranks)
    document = merge(
        ranks,
        name=plan.name,
        command=["traceops", *sys.argv[1:]],
        argv=plan.trains if plan.checkout is None else plan.checkout.argv,
        environment=environment_that_matters(env),
        versions=software_versions(),
        git=git_state(Path.cwd()) if plan.checkout is None else plan.checkout.git,
        world_size=plan.cluster.world_size,
        nnodes=plan.cluster.nnodes,
        started_ns=started,
        ended_ns=None if run is None else time.time_ns(),
        status="running" if run is None else run.status,
        exit_code=None if run is None else run.code,
        failed_rank=None if run is None or run.failure is None else run.failure.rank,
        failures=() if run is None else run.told,
    )
    document = replace(
        document,
        settings=None if plan.settings is None else msgspec.to_builtins(plan.settings),
        fallback=None if plan.fallback is None else msgspec.to_builtins(plan.fallback),
        signal=None if run is None or run.ended.signal is None else signal.Signals(run.ended.signal).name,
        launcher=msgspec.to_builtins(Launcher.this()),
        not_recorded=[asdict(one) for one in unrecorded_here(plan, ranks)],
    )
    write_json(plan.out / "run.json", asdict(document))


def unrecorded_here(plan: Plan, ranks: Sequence[RankManifest]) -> list[Unrecorded]:
    """Processes that trained and were not recorded."""
    return list(unrecorded(plan.out, [rank.rank for rank in ranks]))
