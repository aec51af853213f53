"""run.json as `traceops run` writes it: when the ranks start, and when they have ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from traceops.capture.environment import environment_that_matters, git_state, software_versions
from traceops.capture.joined import Unrecorded, unrecorded
from traceops.capture.manifest import RankManifest, write_json
from traceops.capture.merged_manifest import merge
from traceops.core.capture_failure import CaptureFailure
from traceops.core.run_lock import Launcher
from traceops.launch.outcome import Failure
from traceops.launch.plan import Plan


def write_run(
    plan: Plan,
    ranks: list[RankManifest],
    env: dict[str, str],
    started: int,
    *,
    status: str,
    code: int | None = None,
    failure: Failure | None = None,
    ended_by: int | None = None,
    told: Sequence[CaptureFailure] = (),
) -> None:
    """Write it, as far as is known: without ranks, that the run has begun."""
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
        ended_ns=None if status == "running" else time.time_ns(),
        status=status,
        exit_code=code,
        failed_rank=None if failure is None else failure.rank,
        failures=told,
    )
    document = replace(
        document,
        settings=None if plan.settings is None else asdict(plan.settings),
        fallback=None if plan.fallback is None else asdict(plan.fallback),
        signal=None if ended_by is None else signal.Signals(ended_by).name,
        launcher=asdict(Launcher.this()),
        not_recorded=[asdict(one) for one in unrecorded_here(plan, ranks)],
    )
    write_json(plan.out / "run.json", asdict(document))


def unrecorded_here(plan: Plan, ranks: list[RankManifest]) -> list[Unrecorded]:
    """Processes that trained and were not recorded."""
    return list(unrecorded(plan.out, [rank.rank for rank in ranks]))
