"""Passes of an inference server: prefill and decode steps as vLLM and SGLang annotate them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from traceops.core.arrays import union
from traceops.measure.activity import Activity
from traceops.measure.host_rows import ANNOTATION_CATS, rows_named
from traceops.traces.model import Events

PassKind = Literal["prefill", "decode", "mixed"]

# vLLM's execute_8192_context_9(sq8155…)_generation_37(…) and execute_context_0(0)_generation_8(8), its older
# execute_new_2_cached_5, SGLang's step[EXTEND bs=15 toks=15360]; or a plain prefill or decode, with a number.
_PASS = re.compile(
    r"^execute_(?:(?P<all>\d{1,9})_)?context_(?P<context>\d{1,9})(?:\((?:sq)?(?P<prompt>\d{1,9})[^)]*\))?"
    r"_generation_(?P<generation>\d{1,9})"
    r"|^execute_new_(?P<new>\d{1,9})_cached_(?P<cached>\d{1,9})"
    r"|^step\[(?P<mode>\w+)(?: bs=(?P<batch>\d{1,9}))?(?: toks=(?P<tokens>\d{1,9}))?"
    r"|^(?:run[_ ]|model[_ ]|execute_model\[)?(?P<plain>prefill|decode)(?:[_ ]?(?:step|batch|pass))?[\s#:_\d\]]*$",
    re.IGNORECASE,
)
_WORDS = ("execute_", "step[", "prefill", "decode")
_MODES: Mapping[str, PassKind] = {
    "extend": "prefill",
    "prefill": "prefill",
    "decode": "decode",
    "mixed": "mixed",
    "target_verify": "decode",
    "draft_extend": "decode",
}
_GRAPHS = re.compile(r"^(cuda|hip|cu)GraphLaunch")


class InferencePass(Struct, frozen=True):
    """One pass of a rank; ns. `requests` and `tokens` as its annotation says, None where it does not.

    `device_start` to `device_end` is from its first kernel's begin to its last one's end, `busy` how much of it the
    device ran something. `graphs`: launches of CUDA graphs.
    """

    kind: PassKind
    requests: int | None
    tokens: int | None
    host_start: int
    host_end: int
    device_start: int
    device_end: int
    busy: int
    graphs: int


def find_passes(events: Events, activity: Activity) -> tuple[InferencePass, ...]:
    """The passes of one rank in time order, of the thread that has most; those without a kernel are left out."""
    rows = rows_named(events, _PASS, _WORDS)
    rows = rows[events.in_cats(*ANNOTATION_CATS)[rows]]
    if not len(rows) or not activity.on_gpu:
        return ()
    tids, counts = np.unique(events.tid[rows], return_counts=True)
    rows = rows[events.tid[rows] == tids[np.argmax(counts)]]
    rows = rows[np.lexsort((-events.dur[rows], events.ts[rows]))]
    over = np.maximum.accumulate(events.ts[rows] + events.dur[rows])
    rows = rows[np.concatenate(([True], events.ts[rows][1:] >= over[:-1]))]  # none inside another
    known = activity.by_launch[activity.launch[activity.by_launch] >= 0]
    launched = activity.launched[known]
    graphs = np.sort(events.ts[rows_named(events, _GRAPHS)])
    found = []
    for row in rows.tolist():
        start, end = int(events.ts[row]), int(events.ts[row] + events.dur[row])
        first, last = np.searchsorted(launched, (start, end))
        own = known[first:last]
        told = _told(events.names[events.name[row]])
        if not len(own) or told is None:
            continue
        at = np.searchsorted(graphs, (start, end))
        found.append(
            InferencePass(
                *told,
                host_start=start,
                host_end=end,
                device_start=int(activity.start[own].min()),
                device_end=int(activity.end[own].max()),
                busy=union(activity.start[own], activity.end[own]).total,
                graphs=int(at[1] - at[0]),
            )
        )
    return tuple(found)


def _told(name: str) -> tuple[PassKind, int | None, int | None] | None:
    """Kind, requests and tokens of a pass by its annotation; None for one that is no pass."""
    found = _PASS.match(name)
    if found is None:
        return None
    if found["context"] is not None or found["new"] is not None:
        fresh, going = int(found["context"] or found["new"]), int(found["generation"] or found["cached"] or 0)
        kind: PassKind = "mixed" if fresh and going else "prefill" if fresh else "decode"
        tokens = int(found["all"]) if found["all"] else None
        if tokens is None and found["prompt"] is not None:
            tokens = int(found["prompt"]) + going
        return kind, fresh + going, tokens
    if found["plain"] is not None:
        return ("prefill" if found["plain"].lower() == "prefill" else "decode"), None, None
    mode = _MODES.get(found["mode"].lower())
    if mode is None:
        return None
    batch = None if found["batch"] is None else int(found["batch"])
    tokens = None if found["tokens"] is None else int(found["tokens"])
    return mode, batch, tokens if tokens is not None else batch if mode == "decode" else None
