"""doctor.json: the checkup for other programs, as docs/formats.md and doctor.schema.json say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from traceops.doctor.model import Checkup, Remedy
from traceops.fabric.to_json import machine_json, nccl_json, reference_json
from traceops.render.report.json import plain_json
from traceops.version import __version__

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "doctor.schema.json"


def doctor_document(checkup: Checkup) -> dict[str, Any]:
    """What doctor.json holds: JSON types only, null where a number is not known."""
    document: dict[str, Any] = plain_json(
        {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "traceops", "version": __version__},
            "hosts": checkup.hosts,
            "backend": checkup.backend,
            "started_at": checkup.started_at,
            "seconds": checkup.seconds,
            "machines": [to_builtins(machine_json(machine)) for machine in checkup.machines],
            "looks": [asdict(look) for look in checkup.looks],
            "trials": [asdict(trial) for trial in checkup.trials],
            "measured": [asdict(one) for one in checkup.measured],
            "remedies": [_remedy(remedy) for remedy in checkup.remedies],
            "settings": None if checkup.settings is None else _remedy(checkup.settings),
            "fallback": checkup.fallback,
            "findings": [asdict(finding) for finding in checkup.findings],
            "checks": [asdict(check) for check in checkup.checks],
            "references": [to_builtins(reference_json(reference)) for reference in checkup.references],
            "nccl": None if checkup.log is None else to_builtins(nccl_json(checkup.log)),
            "problems": [{"file": file, "problem": said} for file, said in checkup.problems],
        }
    )
    return document


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {**asdict(remedy.change), "busbw_gbs": remedy.after_gbs, "before_gbs": remedy.before_gbs}
