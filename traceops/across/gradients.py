"""Which of a rank's collectives reduce gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.core.words import Role
from traceops.measure.exchanges import BACKWARD
from traceops.measure.message_size import message_bytes
from traceops.measure.phases import UPDATED
from traceops.measure.summary import CommEvents, RankSummary

_REDUCES = re.compile(r"all_?reduce|reduce_?scatter", re.I)
_SCALAR_BYTES = 64  # what is as small is a number of the program's, no gradient
_OF_LAYERS: tuple[Role, ...] = ("tensor", "context", "expert", "pipeline")


def of_gradients(summary: RankSummary, roles: Sequence[Role] = ()) -> NDArray[np.bool_]:
    """Those that reduce more than the losses, norms, counts and flags that programs reduce as well.

    Parameters that are averaged behind the optimizer's step (local SGD) are no gradients, and neither is what layers
    exchange. DDP reduces gradients inside of backward: with it, what goes round elsewhere is none. roles: of each of
    them, where they differ: of a single one nothing shows that it is told rightly.
    """
    comm = summary.comm
    sums = np.array([_sums(comm, position) for position in range(len(comm.start))], dtype=bool)
    gradients: NDArray[np.bool_] = sums & (comm.phase != UPDATED)
    if summary.backward.by_ddp and (inside := gradients & (comm.phase == BACKWARD)).any():
        gradients = inside
    return gradients & ~np.isin(roles, _OF_LAYERS) if len(roles) else gradients


def reduced_behind_step(comm: CommEvents) -> int | None:
    """Bytes of more than flags and losses that are reduced behind optimizers' steps; None where one does not tell its.

    Local SGD averages models there, and programs reduce what they measured.
    """
    sizes = [
        _bytes(comm, position)
        for position in range(len(comm.start))
        if comm.phase[position] == UPDATED and _sums(comm, position)
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _sums(comm: CommEvents, position: int) -> bool:
    args, size = comm.args[position], _bytes(comm, position)
    op = comm.name[position] if args is None else args.op
    return _REDUCES.search(op) is not None and (size is None or size > _SCALAR_BYTES)


def _bytes(comm: CommEvents, position: int) -> int | None:
    args = comm.args[position]
    return None if args is None else message_bytes(args.elements_out or args.elements_in, args.dtype)
