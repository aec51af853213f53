"""Times the optimizer steps of a rank that is started unchanged: OBSERVED_CLOCK=FOLDER, and OBSERVED_CUPTI=WHERE.

Each step's end has an event on the device. WHERE is STEP[,STEP …][:STEPS]: from each STEP on, CUPTI alone records one
step to warm up and STEPS more (6), and is ended behind them; without it nothing is recorded. FOLDER/rank_R.json has the
times, what the process is like after its first step, and where CUPTI recorded; rank_R.N.rows has what. OBSERVED_TURNS:
other jobs on this machine train in turn with this one (_Turns). This folder stands on the PYTHONPATH of the ranks.
"""

import atexit
import gc
import json
import mmap
import os
import re
import resource
import sys
import threading
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path

_OPTIMIZERS = "torch.optim.optimizer"
_SCALER = "torch.amp.grad_scaler"
_FACTS_AFTER = 1  # step
_STEPS = 6  # that CUPTI measures, where nothing else is asked for
_MARK_BYTES = 8192 + 17  # of a copy that nobody else makes: it marks where a step ends on the device
_VARIABLES = re.compile(r"NCCL|TORCH|OMP|MKL|KMP|CUDA|KINETO|MALLOC|GLOO|TRACEOPS|PYTHON|LD_")


class _Turns:
    """Jobs that train in turn, `block` steps each, after a first step that all make at once.

    OBSERVED_TURNS=FILE:JOB:JOBS:RANKS:BLOCK:ROUNDS. FILE has a byte of each rank of each job: 1 and the rounds that it
    has done. In every other round the jobs go in the other order. Behind the last one all wait for each other.
    """

    limit_s = 90.0

    def __init__(self, told, rank):
        path, *numbers = told.rsplit(":", 5)
        self.job, self.jobs, self.ranks, self.block, self.rounds = map(int, numbers)
        with Path(path).open("r+b") as file:
            self.done = mmap.mmap(file.fileno(), self.jobs * self.ranks)
        self.own = self.job * self.ranks + rank
        self.late = False

    def step(self, number, wait):
        """Behind step `number`: where it ends a turn, wait for the device and until the next turn comes."""
        done, left = divmod(number - 1, self.block)
        if left or done > self.rounds or self.late:
            return
        wait()
        self.done[self.own] = done + 1
        until = time.monotonic() + self.limit_s
        while not self.may(done + 1):
            time.sleep(0.001)
            if time.monotonic() > until:
                self.late = True
                return

    def may(self, coming):
        """Whether all that goes before this job's round `coming` is done."""
        order = list(range(self.jobs))[:: 1 if coming % 2 else -1]
        first = order[: order.index(self.job)] if coming <= self.rounds else []
        return all(
            self.done[job * self.ranks + rank] >= coming + (job in first) for job in order for rank in range(self.ranks)
        )


class _Clock:
    """One rank's; `ended` is called where an optimizer's step ends."""

    def __init__(self, folder, where):
        self.folder = Path(folder)
        firsts, _, steps = where.partition(":")
        self.firsts = [int(one) for one in firsts.split(",") if one]
        self.measured = int(steps or _STEPS)
        self.steps = 0
        self.events, self.host, self.cpu, self.facts = [], [], [], {}
        self.source = self.mark = None
        self.windows = []
        self.written = False
        told = os.environ.get("OBSERVED_TURNS")
        self.turns = _Turns(told, int(os.environ.get("RANK", "0"))) if told else None

    def ended(self, *_):
        torch = sys.modules["torch"]
        on_gpu = torch.cuda.is_initialized()
        self.steps += 1
        if self.steps == 1:
            atexit.register(self.write)
        if on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
        self.host.append(time.perf_counter_ns())
        self.cpu.append((time.thread_time_ns(), time.process_time_ns()))
        if self.steps == _FACTS_AFTER:
            self.facts = _facts(torch)
        if self.firsts and on_gpu:
            try:
                self.record(torch)
            except Exception as error:
                self.source, self.windows[-1]["why"] = None, repr(error)
        if self.turns is not None:
            self.turns.step(self.steps, torch.cuda.synchronize if on_gpu else int)

    def record(self, torch):
        """Begin behind a first step - 1; mark the ends of the steps from it on; end behind the last one."""
        if self.steps in self.firsts:
            self.windows.append({"first": self.steps, "last": self.steps + 1 + self.measured, "why": "not ended"})
            from traceops.capture.detaching import Detaching
            from traceops.capture.light.window import Cupti

            self.source = Cupti(detaching=Detaching())
            why = self.source.start()
            if why is not None:
                self.source, self.windows[-1]["why"] = None, why
            self.mark = torch.empty(2, _MARK_BYTES, dtype=torch.uint8, device="cuda")
        elif self.source is not None:
            with torch.no_grad():
                self.mark[0].copy_(self.mark[1])
            if self.steps == self.windows[-1]["last"]:
                torch.cuda.synchronize()
                found = self.source.stop()
                self.source, self.mark = None, None
                why = found if isinstance(found, str) else None
                self.windows[-1]["why"] = why
                if why is None:
                    self.windows[-1] |= {"names": found.names, "discarded": found.discarded}
                    self.folder.mkdir(parents=True, exist_ok=True)
                    Path(f"{self.stem}.{len(self.windows) - 1}.rows").write_bytes(found.rows)

    @property
    def stem(self):
        return self.folder / f"rank_{os.environ.get('RANK', '0')}"

    def write(self):
        """At the end of the process."""
        if self.written or "torch" not in sys.modules:
            return
        self.written = True
        torch = sys.modules["torch"]
        device = None
        if self.events:
            torch.cuda.synchronize()
            pairs = pairwise(self.events)
            device = [round(a.elapsed_time(b), 4) for a, b in pairs]
        host = [(b - a) / 1e6 for a, b in pairwise(self.host)]
        thread, process = ([(b[at] - a[at]) / 1e6 for a, b in pairwise(self.cpu)] for at in (0, 1))
        told = {
            "host_ms": host, "device_ms": device, "thread_cpu_ms": thread, "process_cpu_ms": process,
            "facts": self.facts, "windows": self.windows, "mark_bytes": _MARK_BYTES,
            "turns": [self.turns.block, self.turns.rounds, self.turns.late] if self.turns else None,
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        Path(f"{self.stem}.json").write_text(json.dumps(told))


def _facts(torch):
    """What may make one process slower than another that runs the same program."""
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    libraries = {Path(line.split()[-1]).name for line in maps if ".so" in line}
    status = Path("/proc/self/status").read_text()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "variables": {k: v for k, v in sorted(os.environ.items()) if _VARIABLES.search(k)},
        "argv": sys.orig_argv,
        "cores": sorted(os.sched_getaffinity(0)),
        "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "python_threads": sorted(thread.name for thread in threading.enumerate()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "parent": Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200],
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if Path(f"/proc/self/task/{os.getpid()}/children").exists()
        else None,
        "switch_interval": sys.getswitchinterval(),
        "gc": [gc.get_threshold(), gc.get_count(), gc.get_freeze_count()],
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32],
        "profiler_loaded": "torch.profiler" in sys.modules,
        "modules": len(sys.modules),
        "hooks": [sys.getprofile() is not None, sys.gettrace() is not None, len(sys.meta_path)],
        "cupti": sorted(name for name in libraries if "cupti" in name or "nvperf" in name),
        "nvml": sorted(name for name in libraries if "nvidia-ml" in name),
        "memory_kB": dict(re.findall(r"(VmRSS|VmHWM|RssAnon|RssShmem):\s+(\d+)", status)),
        "switches": [usage.ru_nvcsw, usage.ru_nivcsw],
        "faults": [usage.ru_minflt, usage.ru_majflt],
        "scheduler": [os.sched_getscheduler(0), os.nice(0)],
        "load": os.getloadavg(),
    }


class _WhenLoaded(MetaPathFinder):
    """Hooks the clock to torch's optimizers, or its gradient scaler, once they are there."""

    def __init__(self, name, hook):
        self.name, self.hook = name, hook

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)  # of whoever else looks for it too
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.hook(module)

        spec.loader.exec_module = exec_module
        return spec


def begin():
    """Time the steps of this process: it is a rank."""
    clock = _Clock(os.environ["OBSERVED_CLOCK"], os.environ.get("OBSERVED_CUPTI", ""))

    def optimizers(module):
        module.register_optimizer_step_post_hook(clock.ended)

    def scaler(module):
        """A step whose optimizers it leaves out is a step all the same, as in torch's own count."""
        update, seen = module.GradScaler.update, [0]

        def ends(*args, **named):
            update(*args, **named)
            if clock.steps == seen[0]:
                clock.ended()
            seen[0] = clock.steps

        module.GradScaler.update = ends

    for name, hook in ((_OPTIMIZERS, optimizers), (_SCALER, scaler)):
        if name in sys.modules:
            hook(sys.modules[name])
        else:
            sys.meta_path.insert(0, _WhenLoaded(name, hook))


def _next_sitecustomize():
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [f for f in sys.path if Path(f).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if "OBSERVED_CLOCK" in os.environ and ("RANK" in os.environ or "OBSERVED_ONE" in os.environ):
    begin()
_next_sitecustomize()
