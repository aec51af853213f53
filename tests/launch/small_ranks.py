"""In the place of torchrun: small_ranks.py OUT starts three ranks in sessions of their own, as torchrun does.

One ends on a signal and says so in OUT/saved; one is stopped; one ignores all and has a worker in a session of its
own whose parent is gone. OUT/up.<n> is there once it is so.
"""

import os
import signal
import sys
import time
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
out = Path(sys.argv[1])


def up(name):
    out.joinpath(f"up.{name}").touch()


def saving():
    def save(number, frame):
        out.joinpath("saved").touch()
        os._exit(0)

    for number in ENDING:
        signal.signal(number, save)
    up("saving")
    time.sleep(1000)


def stopped():
    up("stopped")
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf():
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            up("orphan")
            time.sleep(1000)
        os._exit(0)
    up("deaf")
    time.sleep(1000)


ranks = []
for rank in (saving, stopped, deaf):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        rank()
        os._exit(0)
    ranks.append(pid)


def pass_on(number, frame):
    for pid in ranks:
        os.killpg(pid, number)


for ending in ENDING:
    signal.signal(ending, pass_on)
while True:  # torchrun waits 30 s for ranks that do not end
    time.sleep(1000)
