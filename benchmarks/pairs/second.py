"""A second sample of 24 runs of several ranks (programs/): other programs and other troubles than truth.py.

Written before anything was analysed. COSTS are of the same programs alone (pairs.runs --second --alone).
"""

from __future__ import annotations

import hashlib

from benchmarks.pairs.truth import RUN, SCHEDULE, WINDOW, Case, Trouble

RESTART, TWO_JOBS = "restart", "two jobs"
"""traceops run --launcher none -- torchrun --max-restarts 1 · two jobs record into one folder, the second is tidy."""

_HEALTHY = "a late rank, late input, evaluation or uneven work as a cause (that cores are shared is true here)"

CASES: tuple[Case, ...] = (
    Case("gan", "gan", 2, RUN, (), f"{_HEALTHY}; two optimizers as steps of which some are too long"),
    Case("gpipe_even", "gpipe_by_hand", 3, SCHEDULE, (), f"{_HEALTHY}; uneven stages (fill and drain are true)"),
    Case("distil", "distil", 3, RUN, (), f"{_HEALTHY}; the teacher as an evaluation"),
    Case("recommender_even", "recommender", 2, WINDOW, (), _HEALTHY),
    Case("fsdp_whole", "small_units", 2, RUN, (), f"{_HEALTHY}; small units", ("--accumulate", "2")),
    Case(
        "lengths", "language", 2, WINDOW,
        (Trouble("rank 1 has more to compute (tokens: 300 a text, the other 48)", ("--lengths", "48,300")),),
        "rank 0 as late; a slower processor with equal work; late input; a slow network",
    ),
    Case(
        "diary", "much_logging", 2, SCHEDULE,
        (Trouble("rank 0's host is late (write_histograms)", ("--diary", "20000")),),
        "rank 1 as late; more samples; late input",
    ),
    Case(
        "hot_table", "recommender", 3, WINDOW,
        (Trouble("rank 2 has more to compute (lookups: 1500, the others 20)", ("--lookups", "20,20,1500")),),
        "rank 0 or 1 as late; a slow all_to_all above it; a slower processor with equal work",
    ),
    Case(
        "uneven_end", "breaks", 3, RUN,
        (Trouble("rank 1 left out a batch and ends a step before the others", ("--leave-out", "30"), fatal=True),),
        "rank 0 or 2 as the first that failed; a slow network; an out-of-memory error",
    ),
    Case(
        "rank0_only", "breaks", 3, SCHEDULE,
        (Trouble("only rank 0 is recorded; it waits 100 ms a step for a rank without a trace", plant="late:1:0.1"),),
        "rank 0 as late; a slow network or slow transfer as a fact; smaller or larger buckets",
        ("--only", "0"),
    ),
    Case(
        "tp_late_loader", "megatron_way", 2, RUN,
        (
            Trouble("rank 0's input, read_from_far, 150 ms a step: rank 1 waits in a broadcast", plant="loader:0:0.15"),
            Trouble("rank 1's host in forward, ask_the_tracker, 80 ms a step: rank 0 waits", ("--asks", "0.08")),
        ),
        "rank 1's input as late; slow transfer above both",
    ),
    Case(
        "gpipe_uneven_gc", "gpipe_by_hand", 3, SCHEDULE,
        (
            Trouble("stage 1 takes longer than the others", ("--layers", "2,9,2")),
            Trouble("garbage collection on rank 0 each 5 steps: a long step", plant="gc:0:400000"),
        ),
        "rank 2 as late; stage 0 as the slow one; a slow network",
        ("--layers", "3,3,3"),
    ),
    Case(
        "units_and_validation", "small_units", 2, RUN,
        (
            Trouble("many small all-gathers and reduce-scatters (units)", ("--each", "1")),
            Trouble("validation on all ranks each 8 steps", ("--val-each", "8", "--val-batches", "20")),
        ),
        "validation of one rank only; a late rank; late input",
    ),
    Case(
        "async_and_lengths", "language", 3, RUN,
        (
            Trouble("rank 2 has more to compute (tokens: 300, the others 48)", ("--lengths", "48,48,300")),
            Trouble("checkpoints each 6 steps (dcp.async_save: what it copies, writes and waits)",
                    ("--save-each", "6", "--more-rows", "60000")),
        ),
        "late input; evaluation; a checkpoint of one rank only",
        ("--more-rows", "60000"),
    ),
    Case(
        "diary_and_samples", "much_logging", 3, SCHEDULE,
        (
            Trouble("rank 0's host is late (write_histograms), after its step", ("--diary", "20000")),
            Trouble("rank 2 has more to compute (samples: 1024, the others 64)", ("--batches", "64,64,1024")),
        ),
        "rank 1 as late (it has no trace: to be said); late input",
        ("--only", "0,2"),
    ),
    Case(
        "stuck_loader", "distil", 3, RUN,
        (
            Trouble("rank 2 hangs in its loader, read_from_far, after step 34", plant="stuck:2:1:34"),
            Trouble("before that rank 0 was late, resize_again, 100 ms a step", plant="late:0:0.1"),
        ),
        "another rank as the hang's cause; the hang as a slow network",
        steps=60,
    ),
    Case(
        "memory_and_slow", "breaks", 2, RUN,
        (
            Trouble("rank 1 cannot allocate (limit on its memory), behind step 12",
                    ("--keep", "1000", "--limit-gb", "1.5"), fatal=True),
            Trouble("rank 0's host, resize_again, 100 ms a step", plant="late:0:0.1"),
        ),
        "rank 0 as the first that died; GPU memory",
        steps=60,
    ),
    Case(
        "two_jobs", "much_logging", 2, TWO_JOBS,
        (Trouble("two jobs recorded into one folder: two traces of each rank"),
         Trouble("rank 1 of one of them is late, resize_again, 100 ms a step", plant="late:1:0.1")),
        "a rank of one job waiting for a rank of the other; rank 0 as late",
    ),
    Case(
        "restarted", "breaks", 2, RESTART,
        (
            Trouble("the job was restarted: rank 1 failed after step 12 (ValueError)", ("--fail", "12")),
            Trouble("after that rank 0's host is late, resize_again, 100 ms a step", plant="again:0:0.1"),
        ),
        "rank 0 as the one that failed; rank 1 as late",
        steps=60,
    ),
    Case(
        "unused_and_synced", "accumulate", 2, SCHEDULE,
        (
            Trouble("gradients are reduced in each of 6 micro-batches (no_sync is missing)", ("--sync-each", "1")),
            Trouble("find_unused_parameters (a gain, if told, as of the tidy program)", ("--unused", "1")),
        ),
        "a late rank; late input",
        ("--depth", "12"),
    ),
    Case(
        "syncnorm_and_host", "synced_norm", 3, SCHEDULE,
        (
            Trouble("rank 2's host is late, 150 ms a step", plant="late:2:0.15"),
            Trouble("many small all-reduces in forward and backward (24 norms)", ("--synced", "1")),
        ),
        "rank 0 or 1 as late; waiting for rank 2 told as slow transfer; gradients' buckets as the small ones",
    ),
    Case(
        "clip_meet_late", "clip_and_meet", 2, WINDOW,
        (
            Trouble("rank 0's host is late, 100 ms a step", plant="late:0:0.1"),
            Trouble("an all-reduce of 4 bytes for each of 122 parameters", ("--norms", "1")),
            Trouble("three barriers a step (what they wait for rank 0 is rank 0's)", ("--meet", "3")),
        ),
        "rank 1 as late; late input",
    ),
    Case(
        "decode_and_tables", "decode", 2, RUN,
        (
            Trouble("input is late on both ranks (decode_picture, num_workers=0)", ("--work", "80")),
            Trouble("metrics gathered as objects each step (table_of_metrics)", ("--rows", "500")),
        ),
        "one of the two ranks as late; slow workers (there are none)",
    ),
    Case(
        "eval_and_save", "both_at_once", 3, RUN,
        (
            Trouble("rank 2's input, read_from_far, 100 ms a step", plant="loader:2:0.1"),
            Trouble("rank 0 evaluates alone each 8 steps", ("--eval-batches", "600")),
            Trouble("rank 0 saves alone in the same steps", ("--copies", "100")),
        ),
        "evaluation or saving on rank 1 or 2; rank 0 as late in all steps",
    ),
)  # fmt: skip

_BY_HASH = sorted(CASES, key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
_DRAWN = frozenset(
    case.name
    for kind in range(3)
    for case in [one for one in _BY_HASH if min(len(one.troubles), 2) == kind][kind % 2 :: 2]
)
_READ_BY_MISTAKE, _INSTEAD = {"rank0_only", "uneven_end"}, {"diary", "hot_table"}
ASIDE = _DRAWN - _READ_BY_MISTAKE | _INSTEAD
"""Half of each kind, by hash. Two were read too early and changed places with two that nobody had read."""
