"""Runs the training of hanging.py under `traceops run` and tells what became of it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
from started import environment

from traceops.capture.settings import ENV

SCRIPT = Path(__file__).with_name("hanging.py")
DEADLOCK_S = 600
_ADDED = ("kernel.", "nvidia-smi.", "py-spy_", "topo.", "nccl.", "reference.")


@dataclass(frozen=True)
class Run:
    code: int
    said: str
    folder: Path

    @property
    def manifest(self):
        return json.loads((self.folder / "run.json").read_text())

    @property
    def evidence(self):
        """File names, less those that a kernel, a GPU or py-spy may add, and those that every run on GPUs leaves."""
        names = {path.name for path in (self.folder / "evidence").glob("*")}
        return {name for name in names if not name.startswith(_ADDED)}

    @property
    def hang(self):
        (path,) = (self.folder / "evidence").glob("hang.*.json")
        return json.loads(path.read_text())


def start(folder, fault, *more, nproc=2, options=("--hang-timeout", "2", "--kill-on-hang"), active=6, compiler=False):
    """Start the training with this fault of rank 1, for `finish`; it goes wrong in step 6.

    Steps 3 to 2 + active are recorded.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "traceops", "run", "--nproc", str(nproc), *options, "--out", str(folder / "run"),
         "--skip-first", "1", "--unprofiled", "1", "--warmup", "1", "--active", str(active),
         "--", str(SCRIPT), fault, "1", *map(str, more)],
        env=environment(compiler=compiler), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process, folder):
    """Wait for its end; whatever that was, no process may be left."""
    _, said = process.communicate(timeout=DEADLOCK_S)
    assert not left_behind(folder), said
    return Run(process.returncode, said, folder / "run")


def left_behind(folder):
    """Processes that belong to the run in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get(ENV, ""):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
