"""What every run keeps about the machine it ran on: its topology, and what the doctor measured on it."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

from traceops.capture.environment import host
from traceops.core.files import write_whole
from traceops.fabric.reference import references_here
from traceops.machine.files import output

_PROGRAM_S = 20.0  # 1 to 3 s with eight GPUs whose driver has to wake up
_FINISH_S = 1.0


class FabricEvidence:
    """Collects it beside the training, which it neither delays nor fails.

    gpus: whether the ranks run on them. A run on the CPU leaves nothing, unless the doctor measured this machine.
    """

    def __init__(self, evidence: Path, *, gpus: bool) -> None:
        self._evidence = evidence
        self._gpus = gpus
        self._work = threading.Thread(target=self._collect, daemon=True)
        self._work.start()

    def finish(self) -> None:
        """Wait a moment for what is not there yet; what comes later is lost."""
        self._work.join(_FINISH_S)

    def _collect(self) -> None:
        name = host()
        try:
            if (references := self._references(name)) is not None:
                write_whole(self._evidence / f"reference.{name}.json", references)
            if (topology := self._topology()) is not None:
                write_whole(self._evidence / f"topo.{name}.txt", topology)
        except Exception:  # a full disk, a folder that is gone: the run says so itself, if it matters to it
            return

    def _references(self, name: str) -> bytes | None:
        """Those of this machine for what the run uses, all its topologies: which it has now is for the reader."""
        sources = [
            reference.source
            for reference in references_here()
            if reference.host == name
            and reference.source is not None
            and any((row.backend == "gloo") != self._gpus for row in reference.measured)
        ]
        contents = [json.loads(Path(source).read_bytes()) for source in sources]
        return json.dumps({"references": contents}, indent=1).encode() if contents else None

    def _topology(self) -> bytes | None:
        program = shutil.which("nvidia-smi") if self._gpus else None
        if program is None:
            return None
        return output([program, "topo", "-m"], _PROGRAM_S).text.encode() or None
