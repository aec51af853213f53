"""Writes down how a run ended whose launcher is gone: what its supervisor runs last."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from traceops.capture.environment import host
from traceops.capture.manifest import RunManifest, readable_ranks, write_json
from traceops.capture.merged_manifest import merge
from traceops.core.installation import PACKAGE
from traceops.launch.folder import collect_logs
from traceops.launch.outcome import with_exit_codes
from traceops.launch.writable import remove_reserve

CUT_SHORT = "cut_short"


def command_line(out: Path, logs: Path | None) -> tuple[str, ...]:
    """What runs `settle` in a process of its own, in which nothing of the user's can be in its way."""
    code = (
        f"import sys; sys.path.append({str(PACKAGE.parent)!r}); "
        "from traceops.launch.aftermath import main; main(sys.argv[1:])"
    )
    return (sys.executable, "-I", "-c", code, str(out), *([] if logs is None else [str(logs)]))


def main(argv: list[str]) -> None:
    """Settle the run in the folder that is named first; the second is that of torchrun's logs."""
    settle(Path(argv[0]), Path(argv[1]) if len(argv) > 1 else None)


def settle(out: Path, logs: Path | None) -> None:
    """Complete run.json from what the ranks wrote: the run was cut short when its launcher was killed."""
    remove_reserve(out)
    known = {field.name for field in fields(RunManifest)}
    begun = {key: value for key, value in json.loads((out / "run.json").read_text()).items() if key in known}
    if begun.get("status") != "running":  # the launcher had written it before
        return
    ranks = with_exit_codes(readable_ranks(out)[0], {}, default=-signal.SIGTERM)
    merged = merge(
        ranks,
        **{key: begun[key] for key in ("name", "command", "argv", "environment", "git", "world_size", "nnodes")},
        versions={key: begun[key] for key in ("traceops_version", "python_version", "torch_version")},
        started_ns=begun["started_ns"],
        ended_ns=time.time_ns(),
        status=CUT_SHORT,
        notes=["the launcher was killed, and its ranks were ended with it"],
    )
    kept: dict[str, Any] = {key: begun.get(key) for key in ("settings", "fallback", "launcher")}
    write_json(out / "run.json", asdict(replace(merged, **kept)))
    if logs is not None:
        collect_logs(out, logs, ranks, host())
