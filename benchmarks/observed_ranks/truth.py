"""Ten ordinary programs of several ranks on one GPU under `traceops run`: what is true of each, written before any ran.

Two ranks share one GPU: NCCL takes them for hosts of their own where NCCL_HOSTID differs, and sends over sockets, some
5 ms a collective. The GPU works for the two processes by turns. What follows from that, decided before:

- A kernel lasts longer while the other rank computes too. "Compute" is the time in which kernels of the rank are there,
  in the report as in the truth (CUPTI alone, by itself). Nothing is planted that makes one rank's GPU slower, so no
  rank may be called a slower GPU, and no clock or power may be a cause.
- TO-W002 may say that another process works on the GPU if it names the other rank's: that is true. It must not say that
  it belongs to somebody else. To say that ranks share a GPU is true too.
- That data goes over sockets, that transfers are exposed (TO-O001, TO-O002, TO-O003) and that collectives wait for each
  other is true of all of them. NVLink, P2P or InfiniBand as what should be there between these ranks is false: to NCCL
  they are two hosts. An error that rests on it is a false first finding.
- The launchers run on one machine; no node is missing.
- Workers that are not late, input that is not late, hosts that are late on one rank and are not planted: false. Of a
  step whose hosts are the limit (small kernels) TO-I001 of all ranks is true.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_records

STEPS = 48
CUPTI_FROM = 20


@dataclass(frozen=True)
class Run:
    """One program with its options. due: a pattern for each trouble, most weighty first. never: of what is false.

    plain: the name of the same program without troubles; by itself it runs once, and what a trouble costs is the step
    of this run, as it took without a recording, less that one's. seconds: about what a run takes.
    """

    name: str
    program: str
    truth: str
    options: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    never: str = ""
    plain: str = ""
    ranks: int = 2
    seconds: float = 17.0


RUNS = read_records(Path(__file__).with_name("runs.jsonl"), Run)


def aside() -> frozenset[str]:
    """The half by hash that nobody looks at before the others are mended."""
    names = sorted((one.name for one in RUNS), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return frozenset(names[: len(names) // 2])
