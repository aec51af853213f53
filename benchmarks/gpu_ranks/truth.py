"""What is true of each trace of run.sh, and what may and may not be said of it: written before any was made.

Three patterns were changed when the truths came: rank 1's 60 ms on the host cost 5 % of a step alone, as its GPU has
work queued, and nothing beside a peer with more work. So `late_host`, `late_and_uneven` and
`evaluates_and_late` demand it no longer.

Ranks share one GPU in turns, and send over sockets: some 5 ms a collective, 1.8 GB/s. So exposed transfers may be said
of all of them (TO-O001), and a kernel takes longer while the other rank computes too. Nothing may be said of a slow
link that is not a socket's, nor of clocks, nor of another run's process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """due: a pattern for each trouble, most weighty first. never: a pattern of what may stand nowhere."""

    truth: str
    due: tuple[str, ...] = ()
    never: str = ""


_RANK_0 = r"[Rr]ank 0('s host| is late| causes| takes longer| computes longer)"
_RANK_1 = r"[Rr]ank 1('s host| is late| causes| takes longer| computes longer)"
_ANY = rf"{_RANK_0}|{_RANK_1}"
_INPUT = r"waits? for (its |their )?input|TO-I002"
_HOST_1 = r"[Rr]ank 1('s host| is late| causes)"

EXPECTED: dict[str, Expected] = {
    "ddp_healthy": Expected("DDP, nothing planted; ranks share a GPU", never=rf"{_ANY}|{_INPUT}|TO-I003"),
    "ddp_again": Expected("the same program once more", never=rf"{_ANY}|{_INPUT}|TO-I003"),
    "ddp_accumulates": Expected(
        "DDP over four micro-batches with no_sync(); nothing planted", never=rf"{_ANY}|{_INPUT}|TO-I003"
    ),
    "late_host": Expected(
        "rank 1's host runs Python for 60 ms before each step; its GPU has work queued", (), f"{_RANK_0}|{_INPUT}"
    ),
    "late_host_rank_0_traced": Expected(
        "rank 1's host is late by 120 ms; only rank 0 was recorded: its collectives stay long, and why is not known",
        (r"one rank|rank 1|other rank|1 of 2|only rank",), rf"✔|{_RANK_0}|{_INPUT}",
    ),
    "uneven_batch": Expected(
        "rank 1's batch is twice rank 0's", (r"[Rr]ank 1.{0,60}(longer|more|late|causes)",), f"{_RANK_0}|{_INPUT}"
    ),
    "rank_0_evaluates": Expected(
        "rank 0 evaluates three batches in every third step; the other waits",
        (r"[Rr]ank 0|TO-T001",), f"{_RANK_1}|{_INPUT}",
    ),
    "evaluates_and_late": Expected(
        "rank 1's host is late by 60 ms in each step; rank 0 evaluates in every third", (r"[Rr]ank 0.{0,90}steps 3",),
        _INPUT,
    ),
    "late_and_uneven": Expected(
        "rank 1's host is late by 60 ms; rank 0's batch is half as large again", (r"[Rr]ank 0.{0,40}more",), _INPUT
    ),
    "windows_shifted": Expected(
        "nothing planted; rank 1 began to record two steps later", never=rf"{_ANY}|{_INPUT}|\b[Hh]ang"
    ),
    "stack_on_rank_0": Expected(
        "nothing planted; rank 0 recorded stacks, shapes and memory, rank 1 did not: rank 0 is late by its recording",
        never=rf"✖ [Rr]ank 0|{_RANK_1}|{_INPUT}",
    ),
    "tiny_buckets": Expected(
        "buckets of 0.3 MB: many small collectives, each some ms here", (r"buckets|[Ss]mall collectives|TO-O002",),
        f"{_ANY}|{_INPUT}",
    ),
    "zero_and_objects": Expected(
        "ZeroRedundancyOptimizer; the loss is read and sent by all_gather_object in each step",
        (r"TO-I003|all_gather|object|TO-O001",), f"{_ANY}|{_INPUT}",
    ),
    "hook": Expected("DDP with bf16_compress_hook, nothing planted", never=rf"{_ANY}|{_INPUT}|TO-I003"),
    "hf_ddp": Expected(
        "HF's Trainer: a collator of 40 ms in the main thread on all ranks; the loss is read in each step",
        (_INPUT,), _ANY,
    ),
    "fsdp_clips": Expected(
        "FSDP, the norm of the gradients read in each step",
        (r"TO-I003|TO-O001|exchange data",), f"{_ANY}|{_INPUT}",
    ),
    "fsdp2_late": Expected(
        "fully_shard of each block; rank 1's host is late by 60 ms", (_HOST_1,), f"{_RANK_0}|{_INPUT}"
    ),
    "pipeline_uneven": Expected(
        "a pipeline of 2 and 6 blocks, 1F1B: rank 0 waits for rank 1's longer stage", (r"stage|pipeline",), _INPUT
    ),
    "experts_uneven": Expected(
        "experts: rank 1's gets four of five tokens",
        (r"[Rr]ank 1.{0,60}(longer|more|late|causes)",), f"{_RANK_0}|{_INPUT}",
    ),
}  # fmt: skip


def set_aside(name: str) -> bool:
    """Whether nobody looks at this one before the others are mended."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1
