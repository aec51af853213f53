"""A look at all threads changes nothing for the program, whenever Python's garbage collector is due."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from traceops.capture.threads import all_frames, with_callers

FORKED_IN_A_COLLECTION = """
import gc, os, signal, threading, time
from traceops.capture.observing.stacks import Stacks
from traceops.capture.responder import pulse

def forked(phase, info):
    if phase == "start":
        child = os.fork()
        if child == 0:
            os._exit(0)
        until = time.monotonic() + 20
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.write(1, b"hung")
                os._exit(1)
            time.sleep(0.001)

stacks = Stacks(threading.get_ident())
gc.callbacks.append(forked)
gc.set_threshold(1)
stacks.sample(0, 1)
pulse()
gc.set_threshold(0)
print(stacks.count)
"""


def test_what_is_forked_in_a_collection_meanwhile_does_not_hang():
    done = subprocess.run(
        [sys.executable, "-c", FORKED_IN_A_COLLECTION], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.fixture(params=[True, False])
def collecting(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


class Frame:
    """One of three, which says whether the collector was on when the one outside of it was asked for."""

    def __init__(self, number, told):
        self.number = number
        self.told = told

    @property
    def f_back(self):
        self.told.append(gc.isenabled())
        return Frame(self.number + 1, self.told) if self.number < 2 else None


def test_the_collector_stays_as_it_was(collecting):
    found = all_frames()
    assert gc.isenabled() is collecting
    assert found.keys() == sys._current_frames().keys()
    own = with_callers(found[threading.get_ident()], 1000)
    assert gc.isenabled() is collecting
    assert sys._getframe() in own and own[-1].f_back is None
    assert with_callers(sys._getframe(), 1) == [sys._getframe()]


def test_it_is_off_while_frames_are_made(collecting):
    """Else what it runs could have the thread leave a frame that is just being made."""
    told = []
    assert [one.number for one in with_callers(Frame(0, told), 100)] == [0, 1, 2]
    assert told == 3 * [collecting and sys.version_info[:2] != (3, 11)]


HOOK = """
import gc, sys
from traceops.capture.threads import all_frames

def hook(event, arguments):
    if event == "sys._current_frames":
        raise PermissionError

sys.addaudithook(hook)
for collecting in (True, False):
    (gc.enable if collecting else gc.disable)()
    try:
        all_frames()
    except PermissionError:
        print(gc.isenabled())
"""


def test_so_it_does_where_the_program_forbids_the_look():
    """A hook of this kind stays until the process ends."""
    done = subprocess.run([sys.executable, "-c", HOOK], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr
