# ruff: noqa: E501 a program is a row
"""The programs, and the ways to start, to end and to break them. A row is a case; the harness knows none by name."""

from __future__ import annotations

import signal
from dataclasses import dataclass

TRAIN = """import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    loss = model(torch.rand(8, 4)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()
def save():
    open("weights", "wb").write(model.weight.detach().numpy().tobytes())
    print(torch.rand(3).tolist())
"""
STEPS = TRAIN + "for _ in range(16): step()\n"


@dataclass(frozen=True)
class Program:
    """source: of main.py. words: behind the program's name. start: how Python is told of it. files: others beside it."""

    name: str
    source: str
    words: tuple[str, ...] = ()
    start: str = "main.py"
    files: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    stdin: str = ""


@dataclass(frozen=True)
class SignalCase:
    """The program writes the file `ready`; then, so many seconds later, it gets the signal."""

    program: Program
    number: int
    after_s: float = 0.0


def _p(name: str, source: str, *words: str, start: str = "main.py", stdin: str = "", **more: str) -> Program:
    files = tuple((key.replace("__", "/") + ".py", text) for key, text in more.items() if not key.isupper())
    return Program(name, source, words, start, files, tuple((k, v) for k, v in more.items() if k.isupper()), stdin)


_DDP = """import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
"""

PROGRAMS: tuple[Program, ...] = (
    # How a program ends.
    _p("falls off its end", "print('done')"),
    _p("sys.exit(0)", "import sys; sys.exit()"),
    _p("sys.exit(7)", "import sys; sys.exit(7)"),
    _p("sys.exit(300)", "import sys; sys.exit(300)"),
    _p("sys.exit(-1)", "import sys; sys.exit(-1)"),
    _p("sys.exit('message')", "import sys; sys.exit('no good')"),
    _p("os._exit(9)", "import os; print('x', flush=True); os._exit(9)"),
    _p("raises", "def f():\n    raise ValueError('a\\nb')\nf()"),
    _p("raises from", "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('x') from error"),
    _p("exception group", "import sys\nraise (ExceptionGroup('g', [ValueError(1)]) if sys.version_info > (3, 11) else KeyError(1))"),
    _p("syntax error", "def f(:\n    pass"),
    _p("unicode error", "print('\\ud800')"),
    _p("recursion", "def f(): f()\ntry:\n    f()\nexcept RecursionError as error:\n    print(type(error).__name__)"),
    _p("KeyboardInterrupt", "raise KeyboardInterrupt"),
    _p("kills itself", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    _p("aborts", "import os; os.abort()"),
    _p("SIGTERM to itself", "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"),
    _p("excepthook of its own", "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', error)\nraise ValueError(3)"),
    _p("atexit", "import atexit; atexit.register(print, 'one'); atexit.register(print, 'two')"),
    _p("atexit that fails", "import atexit; atexit.register(lambda: 1 / 0)"),
    _p("thread that goes on", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()"),
    _p("thread that fails", "import threading\nthreading.Thread(target=lambda: 1 / 0).start()"),
    _p("execv", "import os, sys\nif len(sys.argv) < 2:\n    os.execv(sys.executable, [sys.executable, 'main.py', 'again'])\nprint(sys.argv)"),
    # What it sees of how it was started.
    _p("arguments", "import sys; print(sys.argv, sys.path[0] != '')", "--lr", "1", "--", "-m", "a b", ""),
    _p("its own file", "print(__file__, __name__, __doc__, __package__, __spec__, __builtins__ is not None)"),
    _p("as a module", "import sys; print(sys.argv[1:], __name__, __spec__.name)", "x", start="-m main"),
    _p("as a package", "", start="-m pkg", pkg____init__="", pkg____main__="print(__package__, __name__)"),
    _p("as a folder", "", start="app", app____main__="import helper; print(helper.V)", app__helper="V = 3"),
    _p("in a folder below", "", start="app/run.py", app__run="import near; print(near.V)", app__near="V = 4", near="V = 5"),
    _p("its own json.py", "import json; print(json.V)", json="V = 1"),
    _p("its own queue.py and random.py", "import queue, random; print(queue.V, random.V)", queue="V = 1", random="V = 2"),
    _p("bad files in the working folder", "print('x')", start="app/main.py", app__main="print('ok')", logging="1 / 0", platform="1 / 0"),
    _p("reads stdin", "import sys; print(sys.stdin.read()[::-1])", stdin="abc"),
    _p("variables", "import os; print(sorted(k for k in os.environ if k.startswith('MY_')))", MY_A="1", MY_B=""),
    _p("import hook of its own", "import sys\nclass F:\n    def find_spec(self, name, path=None, target=None):\n        return None\nsys.meta_path.insert(0, F())\nimport torch, torch.optim\nprint(len([f for f in sys.meta_path if isinstance(f, F)]))"),
    _p("finder without find_spec", "import sys\nsys.meta_path.insert(0, object())\n" + STEPS + "save()"),
    _p("pickles of __main__", "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)"),
    _p("spawned children", "import multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p: print(p.map(f, [1, 2]))"),
    _p("forked children", "import multiprocessing as m\ndef f(x): return x * 2\nwith m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))"),
    _p("os.fork", "import os\npid = os.fork()\nif not pid: os._exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"),
    # What it prints.
    _p("stdout and stderr in turn", "import sys\nfor i in range(50):\n    print('o', i, flush=True)\n    print('e', i, file=sys.stderr, flush=True)"),
    _p("no end of line", "import sys; sys.stdout.write('abc'); sys.stderr.write('def')"),
    _p("bytes that are no text", "import os; os.write(1, bytes(range(256)))"),
    _p("much output", "for i in range(20000): print('x' * 80)"),
    _p("a shell writes to /dev/stdout", "import os\nprint('a', flush=True)\nos.system('echo b > /dev/stdout')\nprint('c')"),
    _p("closes stdout", "import os; print('x', flush=True); os.close(1)"),
    _p("redirects itself", "import os\nf = os.open('own.txt', os.O_WRONLY | os.O_CREAT)\nos.dup2(f, 1)\nprint('there')"),
    _p("warnings", "import warnings\nfor _ in range(3): warnings.warn('w')\nwarnings.warn('d', DeprecationWarning)"),
    _p("logging", "import logging; logging.basicConfig(level=10); logging.getLogger('a').debug('x'); logging.error('y')"),
    _p("flushes at the end", "print('no flush', end='')"),
    # How it trains.
    _p("sixteen steps", STEPS + "save()"),
    _p("no step", TRAIN + "save()"),
    _p("one step", TRAIN + "step(); save()"),
    _p("a hundred steps", TRAIN + "for _ in range(100): step()\nsave()"),
    _p("fails in step 10", TRAIN + "for i in range(16):\n    step()\n    if i == 10: raise ValueError('bad batch')"),
    _p("exits in step 10", TRAIN + "for i in range(16):\n    step()\n    if i == 10: save(); sys.exit(4)"),
    _p("closure", TRAIN + "o = torch.optim.LBFGS(model.parameters())\ndef c():\n    o.zero_grad(); l = model(torch.ones(2, 4)).square().sum(); l.backward(); return l\nfor _ in range(12): o.step(c)\nsave()"),
    _p("two optimizers", TRAIN + "b = torch.optim.Adam(model.parameters())\nfor _ in range(14):\n    step(); b.step()\nsave()"),
    _p("scheduler and hooks", TRAIN + "s = torch.optim.lr_scheduler.StepLR(optimizer, 3)\nmodel.register_forward_hook(lambda *a: None)\nfor _ in range(16):\n    step(); s.step()\nprint(s.get_last_lr()); save()"),
    _p("gradient scaler", TRAIN + "g = torch.amp.GradScaler('cpu')\nfor _ in range(14):\n    optimizer.zero_grad(); l = model(torch.rand(2, 4)).sum(); g.scale(l).backward(); g.step(optimizer); g.update()\nsave()"),
    _p("data loader", TRAIN + "d = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(64, 4)), 4, shuffle=True, num_workers=2)\nfor (x,) in d:\n    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()\nsave()"),
    _p("profiler of its own", TRAIN + "from torch.profiler import profile, ProfilerActivity\nwith profile(activities=[ProfilerActivity.CPU]) as p:\n    for _ in range(12): step()\nprint(len(p.key_averages()) > 3); save()"),
    _p("steps in a thread", TRAIN + "import threading\nt = threading.Thread(target=lambda: [step() for _ in range(16)])\nt.start(); t.join(); save()"),
    _p("asyncio", TRAIN + "import asyncio\nasync def go():\n    for _ in range(16):\n        step(); await asyncio.sleep(0)\nasyncio.run(go()); save()"),
    _p("checkpoint and back", TRAIN + "for _ in range(8): step()\ntorch.save(optimizer.state_dict(), 'o.pt'); optimizer.load_state_dict(torch.load('o.pt'))\nfor _ in range(8): step()\nsave()"),
    _p("random state", STEPS + "import random; print(torch.get_rng_state().sum(), random.random() is not None); save()"),
    _p("handlers and filters", STEPS + "import signal, warnings, gc\nprint(signal.getsignal(signal.SIGINT), len(warnings.filters), gc.get_threshold(), gc.isenabled())"),
    _p("threads that it counts", STEPS + "import threading; print(threading.active_count(), threading.enumerate())"),
    _p("tracer of its own", "import sys\nseen = []\nsys.settrace(lambda f, e, a: seen.append(e) if 'main.py' in f.f_code.co_filename else None)\ndef f(): return 1\nf()\nprint(seen, sys.gettrace() is not None)"),
    _p("child that captures", STEPS + "import subprocess\ncode = 'import traceops.capture.settings as s; print(s.from_environment(s.CaptureSettings()).out)'\nprint(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout)"),
)  # fmt: skip

# Under torchrun and traceops run, two ranks each.
DISTRIBUTED: tuple[Program, ...] = (
    _p("DDP", _DDP + "for _ in range(16):\n    optimizer.zero_grad(); model(torch.rand(8, 4)).sum().backward(); optimizer.step()\nif dist.get_rank() == 0: open('weights', 'wb').write(model.module.weight.detach().numpy().tobytes())\ndist.destroy_process_group()"),
    _p("rank 1 fails", _DDP + "if dist.get_rank(): raise ValueError('bad')\ndist.barrier()"),
    _p("rank 1 exits with 3", _DDP + "import sys\nif dist.get_rank(): sys.exit(3)\nimport time; time.sleep(20)"),
    _p("rank 0 is killed", _DDP + "import signal, time\nif not dist.get_rank(): os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(20)"),
    _p("all ranks end with 0", "import os; open('rank' + os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])"),
    _p("bad files where it is called", "", start="app/main.py", app__main=_DDP + "dist.barrier(); dist.destroy_process_group()", queue="1 / 0", random="1 / 0", json="1 / 0"),
    _p("an uploader goes on", "import os, subprocess, sys\nif os.environ['RANK'] == '0':\n    subprocess.Popen([sys.executable, '-c', \"import time; time.sleep(3); open('uploaded', 'w').write('x')\"], start_new_session=True)"),
)  # fmt: skip

_HANDLER = """import os, signal, sys, time
def heard(number, frame):
    print('heard', number, flush=True)
    time.sleep(float(sys.argv[1])); open('saved', 'w').write('x')
    sys.exit(int(sys.argv[2]))
for n in map(int, sys.argv[3:]): signal.signal(n, heard)
open('ready', 'w').close()
while True: time.sleep(0.02)
"""
_FINALLY = """import sys, time
open('ready', 'w').close()
try:
    while True: time.sleep(0.02)
except KeyboardInterrupt: print('interrupted')
finally: open('saved', 'w').write('x')
"""
_TRAINS = TRAIN + "for i in range(5000):\n    step()\n    if i == 3: open('ready', 'w').close()\n"


def _handler(number: int, takes_s: float, code: int) -> Program:
    return _p(f"saves for {takes_s} s", _HANDLER, str(takes_s), str(code), str(number))


SIGNALS: tuple[SignalCase, ...] = (
    *(SignalCase(_handler(n, 0.1, 5), n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)),
    SignalCase(_handler(signal.SIGTERM, 8.0, 0), signal.SIGTERM),
    *(SignalCase(_handler(signal.SIGRTMIN + n, 0.1, 6), signal.SIGRTMIN + n) for n in (0, 3)),
    SignalCase(_p("finally", _FINALLY), signal.SIGINT),
    SignalCase(_p("finally", _FINALLY), signal.SIGTERM),
    *(SignalCase(_p("trains", _TRAINS), n, s) for n in (signal.SIGTERM, signal.SIGINT) for s in (0.0, 0.2, 0.7, 1.5)),
    *(
        SignalCase(_p("trains", _TRAINS), n, 0.3)
        for n in (signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL, signal.SIGABRT)
    ),
)
