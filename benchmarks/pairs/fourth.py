"""A fourth sample of 16 runs of two or three ranks (programs/): packages as people use them, half with two troubles.

Written before anything was run under traceops. The rules:

- The first sentence is right if it is true and names the largest trouble, by what its cure saves of the whole run. It
  is right in part if it is true and names the other one, or the right rank or event with a wrong or missing cause.
- A trouble is named if a finding on the terminal has its rank (or "all") and its cause; where a function of the script
  causes it, also that function or its line. Evaluations and saves count with their function or a line that reaches it.
- Every sentence on the terminal is read. One that is false makes a fault of its own, whatever the first sentence is.
- In a healthy run the first sentence is right if it accuses no rank, input, evaluation or save. That ranks share cores,
  that steps are short beside their transfer, and what could not be judged is true on this machine.
- The half set aside is not read before the causes that the other half shows are mended, and is then scored once.
"""

from __future__ import annotations

import hashlib

from benchmarks.pairs.truth import RUN, SCHEDULE, WINDOW, Case, Trouble

_HEALTHY = "a late rank, late input, evaluation, saves, uneven work or stages as a cause (shared cores are true here)"

CASES: tuple[Case, ...] = (
    Case("trainer_even", "hf_collate", 2, RUN, (), _HEALTHY),
    Case("accelerate_even", "accelerate_loop", 3, RUN, (), _HEALTHY),
    Case("shards_fresh", "fsdp_saves", 3, RUN, (), _HEALTHY),
    Case("hand_even", "by_hand", 3, WINDOW, (), _HEALTHY),
    Case(
        "epochs_restart", "lit_epochs", 2, RUN,
        (Trouble("each rank's loader's worker starts anew each 8 steps, open_index, 400 ms", ("--index", "0.4")),),
        "one of the two ranks as late; evaluation; input that is late in all steps",
    ),
    Case(
        "rows_uneven", "by_hand", 2, SCHEDULE,
        (Trouble("rank 1 has twelve times the rows: its operators take longer", ("--rows", "16,192")),),
        "rank 0 as late; late input; rank 1's host as slow at equal work",
        ("--rows", "16,16"),
    ),
    Case(
        "table_refreshed", "tensor_mlp", 2, RUN,
        (Trouble("rank 1's host, refresh_table, 80 ms between forward and backward", ("--refresh", "0.08")),),
        "rank 0 as late; late input; a slow network above it",
    ),
    Case(
        "archive_unpacked", "one_f_one_b", 2, RUN,
        (Trouble("rank 0's input is late, unpack_archive, 150 ms a step", ("--unpack", "0.15")),),
        "rank 1 as late; uneven stages; late sends as a fault",
        ("--depths", "2,2"),
    ),
    Case(
        "collate_and_evaluate", "hf_collate", 2, RUN,
        (
            Trouble("rank 1's collate function, clean_html, 100 ms a step", ("--clean", "0.1")),
            Trouble("evaluation on all ranks each 10 steps", ("--eval-each", "10", "--eval-rows", "640")),
        ),
        "rank 0 as late; evaluation of one rank only; rank 1's host outside of its input",
    ),
    Case(
        "collector_and_push", "accelerate_loop", 2, RUN,
        (
            Trouble("rank 1's tidy_buffer fills the collector, each second step", ("--tidy", "250000")),
            Trouble("rank 0 saves each 20 steps, push_to_bucket, 900 ms", ("--save-each", "20", "--push", "0.9")),
        ),
        "rank 0 as late in all steps; late input",
        (), 60,
    ),
    Case(
        "rows_and_line", "by_hand", 3, RUN,
        (
            Trouble("rank 2 has sixteen times the rows", ("--rows", "8,8,128")),
            Trouble("rank 0's host, weigh_classes, 60 ms between forward and backward", ("--weigh", "0.06")),
        ),
        "rank 1 as late; late input; a slow network above both",
        ("--rows", "8,8,8"),
    ),
    Case(
        "restart_and_drift", "lit_epochs", 2, RUN,
        (
            Trouble("rank 1's callback, measure_drift, 90 ms a step", ("--drift", "0.09")),
            Trouble("each rank's loader's worker starts anew each 8 steps, open_index, 500 ms", ("--index", "0.5")),
        ),
        "rank 0 as late; evaluation",
    ),
    Case(
        "recompiles_and_stranger", "by_hand", 2, RUN,
        (
            Trouble("the compiled model meets a new length each 5 steps", ("--compile", "1", "--grow-each", "5")),
            Trouble("three busy processes of another program", plant="stranger:3:0"),
        ),
        "one rank as late by its own code; late input; evaluation",
    ),
    Case(
        "fetch_and_save", "fsdp_saves", 2, RUN,
        (
            Trouble("rank 0's input is late, fetch_shard, 120 ms a step", ("--fetch", "0.12")),
            Trouble("dcp.save on all ranks each 10 steps, and copy_to_store, 300 ms", ("--save-each", "10")),
        ),
        "rank 1 as late; saves of one rank only",
    ),
    Case(
        "tokenize_and_refresh", "tensor_mlp", 2, SCHEDULE,
        (
            Trouble("rank 0's host, tokenize_batch, 100 ms before the broadcast", ("--draw", "0.1")),
            Trouble("rank 1's host, refresh_table, 60 ms between forward and backward", ("--refresh", "0.06")),
        ),
        "a slow network above both; a tree of broadcasts as a fault",
    ),
    Case(
        "stages_and_share", "one_f_one_b", 3, RUN,
        (
            Trouble("stage 2 has 8 layers, the others 2", ("--depths", "2,2,8")),
            Trouble("rank 0 saves each 10 steps, write_to_share, 400 ms", ("--write-each", "10")),
        ),
        "rank 1 as late; late input; rank 0 as late in all steps",
        ("--depths", "2,2,2"),
    ),
)  # fmt: skip

_BY_HASH = sorted(CASES, key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
ASIDE = frozenset(
    case.name for many in range(3) for case in [one for one in _BY_HASH if len(one.troubles) == many][::2]
)
"""Half of each kind, by hash: not read before the causes that the other half shows are mended."""
