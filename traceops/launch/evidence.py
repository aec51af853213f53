"""Evidence of ranks that hang, before they are ended: stacks, flight recorders, NCCL's records, the machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from traceops.capture.environment import host
from traceops.capture.manifest import read_ranks, write_json
from traceops.capture.progress import Progress
from traceops.capture.responder import DUMP, GROUPS, ask, read_pulse
from traceops.core.claims import Wording
from traceops.core.errors import InputError
from traceops.core.files import write_whole
from traceops.core.rank_text import who
from traceops.hangs.evidence import Stall
from traceops.launch.folder import STALLS
from traceops.launch.process_activity import is_alive, stacks_now, state
from traceops.machine.files import output

_text = Wording("launch", "hang")
_RECORDS = 2000  # collectives a rank; some 10 MB at most
_RENAMED_IN = (2, 9)
# What NCCL says of itself while it connects: interfaces and plugins, channels and their transports (INIT), what
# it makes of the machine and of its rings and trees (GRAPH), variables that were set (ENV). In NCCL 2.10 to 2.30
# none of them has a line for a collective, and warnings belong to all.
_NCCL_SUBSYSTEMS = "INIT,ENV,GRAPH"


def hang_variables(environ: Mapping[str, str], evidence: Path, progress: Path) -> dict[str, str]:
    """What to set so that a hang leaves evidence; whatever `environ` sets already stays as it is. evidence: where the
    records go. progress: the launcher's own folder, for the pipes that ask for them."""
    size, target = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    new_size, new_target = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    values = {
        # Not TORCH_NCCL_ENABLE_TIMING, which records when collectives start: steps took 2 to 3 % longer with it.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(dump_pipe_stem(progress)),
    }
    renamed = torch_version() >= _RENAMED_IN  # newer ones warn about the old names
    if size not in environ and new_size not in environ:
        values[new_size if renamed else size] = str(_RECORDS)
    if target not in environ and new_target not in environ:
        values[new_target if renamed else target] = str(evidence / "flight_recorder_")
    return {name: value for name, value in values.items() if name not in environ}


def nccl_log_variables(environ: Mapping[str, str], evidence: Path) -> dict[str, str]:
    """What to set so that each rank's NCCL writes to `evidence` how it connected, and its warnings. Nothing where
    `environ` has NCCL write elsewhere or otherwise. Warnings only where it chooses subsystems: COLL, say, would be a
    line for every collective."""
    if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ:
        return {}
    target = {"NCCL_DEBUG_FILE": str(evidence).replace("%", "%%") + "/nccl.%h.%p.log"}
    if "NCCL_DEBUG_SUBSYS" in environ:
        return {"NCCL_DEBUG": "WARN", **target}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _NCCL_SUBSYSTEMS, **target}


def dump_pipe_stem(progress: Path) -> Path:
    """What torch's dump pipes are called, before the rank and ``.pipe``."""
    return progress / "nccl_dump_"


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch, without loading it; (0, 0) where that is not known."""
    match = re.match(r"(\d+)\.(\d+)", metadata.version("torch"))
    return (int(match[1]), int(match[2])) if match else (0, 0)


_PIPE_S = 4.0  # torch looks at its pipe once a second
_RESPONDER_S = 3.0
_PROGRAM_S = 8.0
_LEFT_FOR_PROGRAMS_S = 1.0
_STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")  # seconds of the monotonic clock
_OF_A_STALL = ("hang.*.json", "stacks_*.txt", "flight_recorder_*", "groups_*.json", "parameters_*.json", "py-spy_*.txt")
_KERNEL = re.compile(r"\bXid\b|oom-kill|Out of memory: Killed|fallen off the bus")


def collect(
    out: Path,
    progress: Path,
    records: Sequence[Progress],
    stall: Stall,
    *,
    began_s: float = 0.0,
    within_s: float = float("inf"),
) -> None:
    """Write everything about these ranks into the evidence folder of `out`; ``hang.<host>.json`` comes last. began_s:
    when the run began, by the monotonic clock: what the kernel said before is not about it. Takes 1 to 3 s, and up to
    some 20 s where ranks or programs do not answer; within_s: all of them have no longer."""
    until = time.monotonic() + within_s
    evidence = out / "evidence"
    evidence.mkdir(parents=True, exist_ok=True)
    rows = [_row(out, record, stall) for record in records]
    alive = [record for record in records if is_alive(record)]
    running = [record for record in alive if state(record.pid) not in ("T", "t")]  # the others cannot answer
    stacks = stacks_now(running, progress)
    for rank, text in stacks.items():
        write_whole(evidence / f"stacks_{rank}.txt", text.encode())
    notes = [_text("no_stack", rank=record.rank) for record in alive if record.rank not in stacks]
    _dump_flight_recorders(evidence, progress, running, until - _LEFT_FOR_PROGRAMS_S)
    with ThreadPoolExecutor(max_workers=16) as pool:
        looks = [pool.submit(_py_spy, evidence, record, until) for record in alive]
        looks += [pool.submit(_gpus, evidence, until), pool.submit(_kernel, evidence, began_s, until)]
        notes += [note for look in looks if (note := look.result()) is not None]
    stall = replace(stall, notes=(*stall.notes, *notes))
    write_json(evidence / f"hang.{host()}.json", {"schema_version": 1, **msgspec.to_builtins(stall), "ranks": rows})


def set_aside(out: Path) -> Path | None:
    """Move what was collected into a folder of its own, as the job went on; the folder, None where there is nothing."""
    if not (found := [path for pattern in _OF_A_STALL for path in (out / "evidence").glob(pattern)]):
        return None
    kept = next(path for number in count(1) if not (path := out / STALLS / str(number)).exists())
    kept.mkdir(parents=True)
    for path in found:
        path.replace(kept / path.name)
    return kept


def tidy(evidence: Path) -> None:
    """Remove empty files, and the folder if nothing else is in it: a run on the CPU usually leaves none behind."""
    for path in evidence.glob("*"):
        if path.is_file() and (not path.stat().st_size or path.suffix == ".part"):
            path.unlink()
    with suppress(OSError):  # not empty, or never there
        evidence.rmdir()


def saved_evidence(evidence: Path) -> str:
    """What was saved of the ranks, for people: 'stacks of ranks 0-1; flight records of rank 0'."""
    found = []
    for what, prefix, suffix in (("stacks", "stacks_", ".txt"), ("flight records", "flight_recorder_", "")):
        names = (path.name.removeprefix(prefix).removesuffix(suffix) for path in evidence.glob(f"{prefix}*{suffix}"))
        if ranks := [int(name) for name in names if name.isdigit()]:
            found.append(f"{what} of {who(ranks)}")
    return "; ".join(found)


def _row(out: Path, record: Progress, stall: Stall) -> dict[str, Any]:
    now, code = state(record.pid), None
    if now in ("gone", "Z"):
        with suppress(InputError):  # of another rank, perhaps; reported when the run is merged
            code = next((rank.exit_code for rank in read_ranks(out) if rank.pid == record.pid), None)
        # torchrun ends the others as soon as one fails; one that is gone while they go on was done.
        code = 0 if code is None else code
    return {
        "rank": record.rank,
        "pid": record.pid,
        "state": now,
        "step": record.step,
        "phase": record.phase,
        "heartbeat_age_s": round((stall.noticed_ns - record.time_ns) / 1e9, 3),
        "exit_code": code,
    }


def _left(until: float, most_s: float) -> float:
    """How long a step may take that ends by `until`."""
    return max(min(most_s, until - time.monotonic()), 0.1)


def _dump_flight_recorders(evidence: Path, progress: Path, alive: Sequence[Progress], until: float) -> None:
    """Ask torch itself first: its pipe works without the GIL, but only for NCCL."""
    piped = [record for record in alive if _asked_torch(progress, record.rank)]
    asked = [record for record in alive if ask(progress, record.rank, GROUPS if record in piped else DUMP)]
    answering = []
    for record in asked:
        _, pulse = read_pulse(progress, record.rank)  # a rank without collectives has nothing to dump
        if record not in piped and state(record.pid) != "T" and (not pulse or pulse["collectives"]):
            answering.append(record)
    _wait_for(evidence, answering, _left(until, _RESPONDER_S))
    missing = _wait_for(evidence, piped, _left(until, _PIPE_S))
    again = [record for record in missing if ask(progress, record.rank, DUMP)]
    _wait_for(evidence, again, _left(until, _RESPONDER_S))


def _asked_torch(progress: Path, rank: int) -> bool:
    stem = dump_pipe_stem(progress)
    try:
        pipe = os.open(stem.with_name(f"{stem.name}{rank}.pipe"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # not NCCL, or not initialised, or the rank is gone
        return False
    try:
        return os.write(pipe, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(pipe)


def _wait_for(evidence: Path, records: Sequence[Progress], timeout_s: float) -> list[Progress]:
    """Wait until the ranks' dumps are there and have stopped growing; returns the ranks without one."""
    sizes: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    missing = list(records)
    while missing and time.monotonic() < deadline:
        time.sleep(0.1)
        for record in list(missing):
            path = evidence / f"flight_recorder_{record.rank}"
            size = path.stat().st_size if path.exists() else 0
            if size and sizes.get(record.rank) == size:
                missing.remove(record)
            sizes[record.rank] = size
    return missing


def _py_spy(evidence: Path, record: Progress, until: float) -> str | None:
    """Stacks with compiled code, if py-spy is installed; returns why there are none."""
    beside = str(Path(sys.executable).parent)  # in an environment that is not activated
    program = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
    if program is None or state(record.pid) == "T":  # it would wait for a stopped process to stop
        return None
    found = output([program, "dump", "--native", "--pid", str(record.pid)], _left(until, _PROGRAM_S))
    if found.problem is not None:
        return _text("no_py_spy", rank=record.rank, problem=found.problem)
    write_whole(evidence / f"py-spy_{record.rank}.txt", found.text.encode())
    return None


def _gpus(evidence: Path, until: float) -> str | None:
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    found = output([program], _left(until, _PROGRAM_S))
    if found.problem is not None:
        return f"nvidia-smi: {found.problem}"
    write_whole(evidence / f"nvidia-smi.{host()}.txt", found.text.encode())
    return None


def _kernel(evidence: Path, began_s: float, until: float) -> None:
    program = shutil.which("dmesg")
    lines = output([program], _left(until, _PROGRAM_S)).text.splitlines() if program else []
    stamped = [(match, line) for line in lines if (match := _STAMP.match(line)) and _KERNEL.search(line)]
    if told := [line for match, line in stamped if float(match[1]) >= began_s]:
        write_whole(evidence / f"kernel.{host()}.txt", ("\n".join(told) + "\n").encode())
