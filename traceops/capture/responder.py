"""What a rank does when it seems to hang, for its launcher, without the help of the main thread.

Nothing is recorded while the program trains: objects are looked for when the launcher asks, in the thread that answers.
What would wait for a lock of torch's is left out: DDP holds that of its buckets while it waits for other ranks, so
which parameters share a bucket is computed from their sizes by the reader.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from traceops.capture.folder import who_am_i
from traceops.capture.guard import contained, say, text
from traceops.capture.manifest import write_json
from traceops.capture.settings import CaptureSettings
from traceops.capture.threads import all_frames, daemon_thread, with_callers

_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
_FLAT = ("torch.distributed.fsdp._flat_param", "FlatParamHandle")  # FSDP1, torch 2.2 and later
_SHARDED = (  # FSDP2, torch 2.6 and later, and before
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup"),
    ("torch.distributed._composable.fsdp._fsdp_param_group", "FSDPParamGroup"),
)
_MOST_NAMES = 4  # of each bucket
_MOST = 10_000  # parameters, and rows


def carried(group_names: dict[Any, str]) -> list[dict[str, Any]]:
    """A row for each model under DDP and each shard group of FSDP of this process.

    {"strategy": "ddp", "group": its process group's name or null, "cap_bytes": of a bucket, "parameters": [[name,
    elements, bytes], …] in the model's order}; or {"strategy": "fsdp", "group", "elements": of the whole, as ranks
    reduce it, "shard": of one rank's part, both padded, "names": the first four, "count": how many parameters}.
    group_names: of the process groups that this rank knows.
    """
    readers = {
        kind: read
        for (module, name), read in ((_DDP, _trained), (_FLAT, _flat), *((where, _shards) for where in _SHARDED))
        if (kind := getattr(sys.modules.get(module), name, None)) is not None
    }
    rows: list[dict[str, Any]] = []
    for found in gc.get_objects() if readers else ():
        if (read := readers.get(type(found))) is not None and len(rows) < _MOST:
            try:
                rows += read(found, group_names)
            except Exception:  # one that is being made or taken down, or a torch that has it otherwise
                continue
    return rows


def _trained(model: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    left_out = set(getattr(model, "parameters_to_ignore", ()))
    told = [
        (name, parameter.numel(), parameter.numel() * parameter.element_size())
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in left_out
    ]
    yield {
        "strategy": "ddp",
        "group": groups.get(model.process_group),
        "cap_bytes": int(model.bucket_bytes_cap),
        "parameters": told[:_MOST],
    }


def _flat(handle: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    flat = handle.flat_param
    shard = int(flat._sharded_size.numel())
    yield _row(groups.get(handle.process_group), shard * handle.world_size, shard, flat._fqns)


def _shards(group: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    shard = sum(int(parameter.padded_sharded_param_size.numel()) for parameter in group.fsdp_params)
    names = [parameter._param_fqn or parameter._module_info.param_name for parameter in group.fsdp_params]
    world = group._all_gather_process_group
    yield _row(groups.get(world), shard * world.size(), shard, names)


def _row(group: str | None, elements: int, shard: int | None, names: Any) -> dict[str, Any]:
    return {
        "strategy": "fsdp",
        "group": group,
        "elements": elements,
        "shard": shard,
        "names": list(names[:_MOST_NAMES]),
        "count": len(names),
    }


# Not the first real-time signals: those are what other programs take. None on a system without (macOS).
STACKS_SIGNAL: int | None = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
PULSE, GROUPS, DUMP, STACKS = b"p", b"g", b"d", b"s"


def stacks_path(folder: Path, rank: int) -> Path:
    """Where STACKS or STACKS_SIGNAL makes the rank append the stacks of its threads, after a line that tells whose."""
    return folder / f"stacks_{rank}.txt"


def fifo_path(folder: Path, rank: int) -> Path:
    """Where the rank takes requests: PULSE, STACKS, GROUPS, or DUMP, which is GROUPS and the flight recorder."""
    return folder / f"ask_{rank}.fifo"


def pulse_path(folder: Path, rank: int) -> Path:
    """JSON with what changes only if the rank works."""
    return folder / f"pulse_{rank}.json"


_HEAD = "# rank {rank}, pid {pid}, main thread 0x{main:016x}\n\n"


class Responder:
    """One rank's answers: stacks, counters and the flight recorder from a thread, and stacks on a signal.

    The signal's handler is C and needs neither the GIL nor the main thread, but may crash the process if
    another thread runs Python just then: it is for ranks that are given up. The thread sleeps in a read until
    it is asked; where the main thread hangs with the GIL held, it cannot answer.

    progress: the launcher's own folder. evidence: folder of the run for what is kept.
    """

    def __init__(self, progress: Path, evidence: Path, rank: int) -> None:
        self._progress, self._evidence, self._rank = progress, evidence, rank
        main = threading.main_thread().ident or 0
        # Numbers, not files of Python's: those are closed at the end, when they may be the script's.
        self._stacks = os.open(
            stacks_path(progress, rank), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        os.write(self._stacks, _HEAD.format(rank=rank, pid=os.getpid(), main=main).encode())
        if STACKS_SIGNAL is not None:
            faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True, chain=False)
        fifo = fifo_path(progress, rank)
        fifo.unlink(missing_ok=True)  # of this rank before torchrun restarted it
        os.mkfifo(fifo)
        self._requests = os.open(fifo, os.O_RDWR)  # both ends, so that reading never ends
        self._fifo = os.fstat(self._requests)
        hears = () if STACKS_SIGNAL is None else (STACKS_SIGNAL,)
        daemon_thread("traceops-responder", self._answer_all, hears).start()

    def _answer_all(self) -> None:
        # The script may have closed it and opened another file under its number, which is not ours to read.
        while os.path.samestat(os.fstat(self._requests), self._fifo) and (request := os.read(self._requests, 1)):
            try:
                self._answer(request)
            except Exception as error:  # a full disk must not end the answers, nor the training
                say(text("not_saved", rank=self._rank, error=error))

    def _answer(self, request: bytes) -> None:
        if request == PULSE:
            write_json(pulse_path(self._progress, self._rank), pulse())
        elif request == STACKS:  # by this thread, while no other runs Python
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        else:
            self.save(with_recorder=request == DUMP)

    def save(self, *, with_recorder: bool = True) -> None:
        """Keep what this rank knows of its groups, and its flight recorder, as evidence."""
        if (described := describe_groups(self._rank)) is None:
            return
        write_json(self._evidence / f"groups_{self._rank}.json", described)
        contained(self._save_carried)
        recorder, target = _flight_recorder(), self._evidence / f"flight_recorder_{self._rank}"
        if not with_recorder or recorder is None or target.exists():  # torch may have written it already
            return
        part = self._evidence / f".flight_recorder_{self._rank}.part"
        part.write_bytes(recorder())
        part.replace(target)

    def _save_carried(self) -> None:
        """What the collectives of DDP and FSDP carry, if they are in use."""
        if rows := carried(_groups()):
            document = {"rank": self._rank, "collectives": rows}
            write_json(self._evidence / f"parameters_{self._rank}.json", document)


def pulse() -> dict[str, Any]:
    """What changes only if this process works: the main thread's place, collectives called, GPU allocations. {"main":
    [[file, line, function, instruction], …] innermost first, "collectives": {group: sequence number},
    "gpu_allocations": number, or null where no GPU is in use}."""
    collectives = {}
    for group, name in _groups().items():
        try:
            collectives[name] = int(group._get_sequence_number_for_group())
        except RuntimeError:  # a backend that counts nothing, or one that is being taken down
            continue
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    on_gpu = cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized()
    allocations = cuda.memory_stats().get("allocation.all.allocated") if on_gpu and cuda is not None else None
    return {"main": _main_stack(), "collectives": collectives, "gpu_allocations": allocations}


def _main_stack() -> list[tuple[str, int, str, int]]:
    innermost = all_frames().get(threading.main_thread().ident or 0)
    if innermost is None:
        return []
    return [
        (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, frame.f_lasti)
        for frame in with_callers(innermost, sys.getrecursionlimit())
    ]


def describe_groups(rank: int) -> dict[str, Any] | None:
    """The process groups that this rank knows and their members; None before there are any."""
    if not (groups := _groups()):
        return None
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return {
        "rank": rank,
        "world_size": world.default_pg.size() if world.default_pg is not None else None,
        "groups": {
            name: {"description": group.group_desc, "ranks": sorted(world.pg_group_ranks.get(group, {}))}
            for group, name in groups.items()
        },
    }


def _groups() -> dict[Any, str]:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)  # absent while torch is being imported
    return {} if world is None else dict(world.pg_names)


def _flight_recorder() -> Callable[[], bytes] | None:
    """What dumps the recorder: NCCL has its own, and before torch 2.9 was the only one to have any."""
    native = sys.modules.get("torch._C._distributed_c10d")
    dist = sys.modules.get("torch.distributed")
    nccl = dist is not None and dist.is_initialized() and "nccl" in dist.get_backend()
    names = ("_dump_nccl_trace", "_dump_fr_trace") if nccl else ("_dump_fr_trace", "_dump_nccl_trace")
    return next((found for name in names if (found := getattr(native, name, None)) is not None), None)


def ask(folder: Path, rank: int, request: bytes) -> bool:
    """Send a request to a rank, from the launcher; False where nobody is there to take it."""
    try:
        pipe = os.open(fifo_path(folder, rank), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # not there yet, or no reader: the rank is gone
        return False
    try:
        return os.write(pipe, request) == 1
    except OSError:  # full, or its reader has just gone
        return False
    finally:
        os.close(pipe)


def read_pulse(folder: Path, rank: int) -> tuple[int, dict[str, Any]]:
    """When the rank answered PULSE last, and what; (0, {}) if it never has."""
    path = pulse_path(folder, rank)
    if not path.exists():
        return 0, {}
    return path.stat().st_mtime_ns, json.loads(path.read_text())


def responder_of(settings: CaptureSettings) -> Responder | None:
    """The one of this process, where a launcher on this machine listens."""
    if settings.progress is None or settings.evidence is None:
        return None
    return Responder(Path(settings.progress), Path(settings.evidence), who_am_i().rank)
