"""A launcher without torch: runs a script in the place of torchrun as `traceops run` does, in the folder it is given.

small_launcher.py OUT SCRIPT: the script has itself to make ranks, see small_ranks.py.
"""

import json
import sys
from pathlib import Path

import msgspec

import traceops.launch.process as process
from traceops.capture.manifest import merge, write_json
from traceops.capture.settings import ENV
from traceops.core.run_lock import Launcher, held
from traceops.launch import outcome
from traceops.launch.display import Screen
from traceops.launch.folder import Reserve
from traceops.launch.signals import held_signals

process.GRACE_S = 0.5

out, script = Path(sys.argv[1]), sys.argv[2]
progress = out / "progress"
with held(out) as lock:
    progress.mkdir()
    run = merge([], name="small", command=[], argv=[], environment={}, versions={}, git=None, world_size=2)
    write_json(out / "run.json", {**vars(run), "launcher": msgspec.to_builtins(Launcher.this())})
    Reserve(out)
    env = {"PATH": "/bin:/usr/bin", ENV: json.dumps({"out": str(out)})}
    with held_signals() as received:
        ended = process.run(
            [sys.executable, script, str(out)], env, progress=progress,
            ranks=2, logs=None, rank_of=lambda local: local, screen=Screen(), received=received,
            guard=process.LauncherGuard(lock, outcome.settle_command(out, None), progress),
        )  # fmt: skip
    (out / "ended.json").write_text(json.dumps({"signal": ended.signal, "returncode": ended.returncode}))
