"""A third sample of 24 runs of several ranks (programs/): other models, other troubles and other places.

Written before anything was analysed. What each trouble takes stands in `costs.RANK.json` beside the program's clock
(programs/costs.py); what its cure saves is measured by the same program without it (pairs.runs --third --alone).
"""

from __future__ import annotations

import hashlib

from benchmarks.pairs.truth import RUN, SCHEDULE, WINDOW, Case, Trouble

_HEALTHY = "a late rank, late input, evaluation, uneven work or stages as a cause (that cores are shared is true here)"

CASES: tuple[Case, ...] = (
    Case("shards_even", "shards_loop", 3, RUN, (), _HEALTHY, ("--accumulate", "2")),
    Case("stages_even", "gpipe_library", 2, SCHEDULE, (), f"{_HEALTHY} (fill and drain are true)", ("--depths", "4,4")),
    Case("tensor_even", "tensor_plan", 2, RUN, (), _HEALTHY),
    Case("speakers_even", "speaker", 3, RUN, (), _HEALTHY, ("--lengths", "40,40,40")),
    Case("lit_even", "lit_modules", 2, RUN, (), f"{_HEALTHY}; a checkpoint as a large share"),
    Case("ring", "ring_keys", 3, WINDOW, (), f"{_HEALTHY}; a pipeline with a bubble"),
    Case(
        "deep_last_stage", "gpipe_library", 3, RUN,
        (Trouble("stage 2 has 10 layers, the others 2", ("--depths", "2,2,10")),),
        "rank 0 or 1 as late; the host of rank 2 as slow at equal work; late sends as a fault",
        ("--depths", "2,2,2"),
    ),
    Case(
        "outer_late", "outer_steps", 3, RUN,
        (Trouble("rank 2's host, score_hypotheses, 80 ms a step; all meet each 4 steps",
                 ("--score", "0.08", "--score-rank", "2")),),
        "recompilation or allocation as the cause of long steps; gradients that are not synchronised, as a fault",
    ),
    Case(
        "long_texts", "speaker", 2, RUN,
        (Trouble("rank 0's texts are five times as long", ("--lengths", "200,40")),),
        "rank 1 as late; late input; rank 0's host as slow at equal work",
        ("--lengths", "40,40"),
    ),
    Case(
        "short_snapshots", "segment", 2, RUN,
        (Trouble("rank 0 saves each 4 steps, 60 ms, the other waits", ("--save", "0.06")),),
        "a late rank in all steps; late input",
        ("--rows", "48,48"),
    ),
    Case(
        "masks_drawn", "segment", 3, RUN,
        (Trouble("rank 0's host, draw_masks, 90 ms a step; all synchronise each step", ("--draw", "0.09")),),
        "rank 1 or 2 as late; late input",
    ),
    Case(
        "clips_everywhere", "workers", 2, RUN,
        (Trouble("one worker a rank decodes 200 ms a batch: input is late on both", ("--clip", "0.2")),),
        "one of the two ranks as late",
        ("--zero", "0"),
    ),
    Case(
        "tokens_and_mean", "speaker", 2, RUN,
        (
            Trouble("rank 1's collator, tokenize, 130 ms a step", ("--tokens", "0.13", "--slow-rank", "1")),
            Trouble("rank 0's host, follow_weights, 70 ms (hidden behind rank 1)",
                    ("--mean", "0.07", "--mean-rank", "0")),
        ),
        "rank 0's input; rank 1's host outside of its input",
    ),
    Case(
        "attention_and_quality", "shards_loop", 2, RUN,
        (
            Trouble("rank 0's host, show_attention, 90 ms between forward and backward", ("--show", "0.09")),
            Trouble("validation on all ranks each 8 steps, quality", ("--val-batches", "12")),
        ),
        "validation of one rank only; rank 1 as late; late input",
    ),
    Case(
        "stages_and_crop", "gpipe_library", 3, SCHEDULE,
        (
            Trouble("rank 0's host, crop, 120 ms a step before its first send", ("--crop", "0.12")),
            Trouble("stage 1 has 10 layers, the others 2", ("--depths", "2,10,2")),
        ),
        "rank 2 as late; a slow network",
        ("--depths", "2,2,2"),
    ),
    Case(
        "lengths_and_save", "speaker", 2, RUN,
        (
            Trouble("rank 1's texts are four times as long", ("--lengths", "40,160")),
            Trouble("rank 0 saves each 4 steps, keep_checkpoint, 250 ms", ("--save", "0.25")),
        ),
        "rank 0 as late in all steps; late input; rank 1 as saving",
        ("--lengths", "40,40"),
    ),
    Case(
        "read_and_noise", "micro_batches", 2, RUN,
        (
            Trouble("input is late on both ranks, four times 25 ms a step", ("--read", "0.025")),
            Trouble("rank 1's host, add_noise, four times 20 ms a step", ("--noise", "0.02")),
        ),
        "rank 0 as late; one rank's input alone",
    ),
    Case(
        "pack_and_images", "own_hook", 2, RUN,
        (
            Trouble("the comm hook packs on the host of both ranks, 80 ms", ("--pack", "0.08")),
            Trouble("rank 0 writes images each 4 steps, 300 ms", ("--images", "0.3")),
        ),
        "a slow network; rank 0 as late in all steps; late input",
    ),
    Case(
        "table_and_summary", "tensor_plan", 2, SCHEDULE,
        (
            Trouble("rank 1's host in forward, look_up_positions, three times 40 ms", ("--table", "0.12")),
            Trouble("rank 0 summarizes metrics while rank 1 waits in a barrier, 60 ms", ("--summary", "0.06")),
        ),
        "waiting told as slow transfer above both; late input",
    ),
    Case(
        "plan_and_tokens", "router", 3, WINDOW,
        (
            Trouble("the router's plan_capacity on the host of all ranks, 80 ms", ("--plan", "0.08")),
            Trouble("rank 2 has most tokens: its expert computes longer", ("--hot", "640")),
        ),
        "a slow network; rank 0 or 1 as late; late input",
        ("--rows", "768", "--hot", "256"),
    ),
    Case(
        "mask_and_archive", "hf_collator", 2, RUN,
        (
            Trouble("rank 1's collator, find_spans, 100 ms a step", ("--mask", "0.1")),
            Trouble("checkpoints each 8 steps, rank 0 copies them (500 ms)", ("--copy", "0.5", "--save-each", "8")),
        ),
        "rank 0's input; rank 0 as late in all steps",
    ),
    Case(
        "outer_and_judge", "outer_steps", 2, RUN,
        (
            Trouble("rank 1's host, score_hypotheses, 60 ms a step; all meet each 4 steps", ("--score", "0.06")),
            Trouble("evaluation on all ranks each 8 steps, judge, 400 ms", ("--judge-batches", "20")),
        ),
        "evaluation of one rank only; recompilation as a cause",
    ),
    Case(
        "clips_and_scheduler", "workers", 3, RUN,
        (
            Trouble("rank 0's worker decodes 160 ms a batch: its input is late",
                    ("--clip", "0.16", "--clip-rank", "0")),
            Trouble("rank 2's host, ask_scheduler, 80 ms before its optimizer", ("--asks", "0.08", "--asks-rank", "2")),
        ),
        "rank 1 as late; rank 2's input",
        ("--clip-rank", "0"),
    ),
    Case(
        "prompt_and_scale", "mesh_by_hand", 4, RUN,
        (
            Trouble("rank 1's host in forward, fetch_prompt, 120 ms", ("--prompt", "0.12")),
            Trouble("rank 0's host behind backward, adapt_scale, 70 ms", ("--scale", "0.07", "--scale-rank", "0")),
        ),
        "rank 2 or 3 as late; late input; a slow network",
    ),
)  # fmt: skip

_BY_HASH = sorted(CASES, key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
ASIDE = frozenset(
    case.name for many in range(3) for case in [one for one in _BY_HASH if len(one.troubles) == many][::2]
)
"""Half of each kind, by hash: not read before the causes that the other half shows are mended."""
