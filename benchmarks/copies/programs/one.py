"""One program for some steps, as `traceops run` gets it, when it has its turn: one.py NAME WAY STEPS."""

import fcntl
import os
import sys
from pathlib import Path

import torch  # noqa: F401, the slow part before the turn
from cases import PROGRAMS

turn = Path(os.environ["TURN"]).open("w")  # noqa: SIM115, held until the process ends
fcntl.flock(turn, fcntl.LOCK_EX)
name, way, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
PROGRAMS[name][0](way)(steps, lambda: None)
