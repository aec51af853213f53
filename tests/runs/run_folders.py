"""Folders of runs that cost nothing to make: links to recorded traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


def run_of(folder: Path, source: str = "straggler_gloo2", **told: Any) -> Path:
    """A run folder with the traces of a recorded one; `told` replaces what its run.json says."""
    shutil.copytree(DATA / source, folder)
    manifest = folder / "run.json"
    known = json.loads(manifest.read_text()) if manifest.is_file() else {}
    manifest.write_text(json.dumps({**known, "name": folder.name, **told}))
    return folder


def failed_run(folder: Path, **told: Any) -> Path:
    """A run folder without a trace, as an out-of-memory training leaves it."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": folder.name, "status": "failed", "steps": 0, **told}))
    return folder
