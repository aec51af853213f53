"""What PAIRS_PLANT="kind:rank:value[:from[:to]],…" makes a rank do; a program knows nothing of it.

late: sleeps behind an optimizer's step; again: only after a restart of the job. loader: sleeps in what gives the next
batch; stuck: that never comes. gc: collects VALUE cycles each fifth step. hang: never returns. oom: is killed as the
kernel's out-of-memory killer does it. Rank * means all.
"""

import gc
import os
import signal
import time


class Node:
    """Part of a cycle that only the collector frees."""


def _rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def _parse():
    for one in filter(None, os.environ.get("PAIRS_PLANT", "").split(",")):
        kind, rank, value, *rest = one.split(":")
        first, last = int(rest[0]) if rest else 0, int(rest[1]) if len(rest) > 1 else 10**9
        yield kind, rank, float(value), first, last


PLANTS = tuple(_parse())
steps = 0


def _mine(*kinds):
    for kind, rank, value, first, last in PLANTS:
        if kind in kinds and rank in ("*", str(_rank())) and first <= steps <= last:
            yield kind, value


def collect_cycles(many):
    for _ in range(many):
        a, b = Node(), Node()
        a.other, b.other = b, a
    gc.collect()


def resize_again(seconds):
    time.sleep(seconds)


def wait_for_ever():
    time.sleep(10**6)


def read_from_far(seconds):
    time.sleep(seconds)


def stepped(*_):
    global steps
    steps += 1
    for kind, value in _mine("late", "again", "gc", "hang", "oom"):
        if kind == "late" or (kind == "again" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"):
            resize_again(value)
        elif kind == "gc" and steps % 5 == 0:
            collect_cycles(int(value))
        elif kind == "hang":
            wait_for_ever()
        elif kind == "oom":
            os.kill(os.getpid(), signal.SIGKILL)


def before_batch():
    for kind, value in _mine("loader", "stuck"):
        read_from_far(10**6 if kind == "stuck" else value)
