"""A fifth sample of 12 runs of two or three ranks (programs/), seven with two troubles; rules are those of fourth.py.

Written before anything was run under traceops. SAYS: a finding on the terminal that names a trouble matches its pattern
(rank and cause, and where a function causes it, its name or a line that calls it). FALSE: no sentence may match it.
"""

from __future__ import annotations

import hashlib
import re

from benchmarks.pairs.fourth import _HEALTHY
from benchmarks.pairs.truth import RUN, SCHEDULE, WINDOW, Case, Trouble

CASES: tuple[Case, ...] = (
    Case("tail_even", "tail", 2, RUN, (), f"{_HEALTHY}; an epoch's shorter last step as a fault"),
    Case("offload_even", "offload", 2, RUN, (), _HEALTHY),
    Case("finder_even", "finder", 3, RUN, (), _HEALTHY),
    Case(
        "scan_of_many", "scans", 2, RUN,
        (Trouble("single batches are late on either rank, decode_scan, 400 ms each", ("--decode", "0.4")),),
        "one of the two ranks as late; input that is late in all steps; evaluation",
        (), 60,
    ),
    Case(
        "hook_of_one", "hook_unused", 2, SCHEDULE,
        (Trouble("rank 1's comm hook, round_stochastically, 90 ms a bucket", ("--round", "0.09")),),
        "rank 0 as late; late input; a slow network above it",
    ),
    Case(
        "large_and_count", "tail", 2, RUN,
        (
            Trouble("rank 1's host, count_labels, 30 ms behind each of four backward passes", ("--count", "0.03")),
            Trouble("rank 0's input is late in single steps, read_large_file, 700 ms", ("--large", "0.7")),
        ),
        "rank 1's input as late; rank 0 as late in all steps",
    ),
    Case(
        "scores_and_average", "scores", 3, RUN,
        (
            Trouble("rank 0's host, update_average, 90 ms a step", ("--average", "0.09")),
            Trouble("all ranks gather large objects in each step, gather_scores", ("--words", "4000")),
        ),
        "rank 1 or 2 as late; late input; gradients as what takes long to transfer",
    ),
    Case(
        "sorted_and_validated", "by_length", 2, RUN,
        (
            Trouble("each epoch's first batch (each 10 steps) waits for measure_texts, 800 ms", ("--measure", "0.8")),
            Trouble("validate each 10 steps, rank 1 has six times the batches", ("--validate", "6,36,0")),
        ),
        "one rank as late in all steps; validation told as shorter on rank 1",
        ("--validate", "0,0,0"),
    ),
    Case(
        "shapes_and_records", "shapes", 2, RUN,
        (
            Trouble("rank 1's compiled model meets a new length each 4 steps", ("--grow-each", "4")),
            Trouble("rank 0's log_records fills the collector, each step", ("--records", "60000")),
        ),
        "late input; evaluation; rank 0 as the one that compiles",
    ),
    Case(
        "server_and_file", "one_file", 3, RUN,
        (
            Trouble("rank 0's input is late, ask_server, 110 ms a step", ("--ask", "0.11")),
            Trouble("all ranks save into one file by turns each 10 steps, save_shared", ("--save-each", "10")),
        ),
        "saves of one rank only; rank 1 or 2 as late in all steps",
    ),
    Case(
        "filter_and_norms", "offload", 2, WINDOW,
        (
            Trouble("input is late on both ranks, drop_bad_texts, 120 ms a step", ("--drop", "0.12")),
            Trouble("rank 1's host, watch_norms, 70 ms behind backward", ("--watch", "0.07")),
        ),
        "rank 0 as late; one rank's input only",
    ),
    Case(
        "finder_and_colors", "finder", 2, RUN,
        (
            Trouble("rank 1's host, shift_colors, 80 ms a step before forward", ("--shift", "0.08")),
            Trouble("the first 12 steps try rates, and rank 0 plots in each, plot_curve, 400 ms", ("--plot", "0.4")),
        ),
        "rank 0 as late in all steps; late input; evaluation",
    ),
)  # fmt: skip

SAYS: dict[str, tuple[str, ...]] = {
    "scan_of_many": (r"(TO-W001|TO-T001|TO-I002|input|loader|batch).*(decode_scan|scans\.py)",),
    "hook_of_one": (r"[Rr]ank 1.*(round_stochastically|hook_unused\.py)",),
    "large_and_count": (
        r"[Rr]ank 1.*(count_labels|tail\.py)",
        r"([Rr]ank 0|input|loader|batch).*(read_large_file|tail\.py)",
    ),
    "scores_and_average": (
        r"[Rr]ank 0.*(update_average|scores\.py)",
        r"(gather_scores|gather_object|object|pickle)",
    ),
    "sorted_and_validated": (r"(measure_texts|by_length\.py:3)", r"(validat|[Ee]valuat).*(validate|by_length\.py)"),
    "shapes_and_records": (
        r"[Rr]ank 1.*(compil)|(compil).*[Rr]ank 1",
        r"(collector|log_records).*[Rr]ank 0|[Rr]ank 0.*(collect|log_records)",
    ),
    "server_and_file": (
        r"[Rr]ank 0.*(ask_server|input|loader)",
        r"([Cc]heckpoint|save|TO-W00[13]).*(save_shared|flush_to_share|one_file\.py)",
    ),
    "filter_and_norms": (r"(input|loader|batch).*", r"[Rr]ank 1.*(watch_norms|offload\.py)"),
    "finder_and_colors": (r"[Rr]ank 1.*(shift_colors|finder\.py)", r"(plot_curve|find_rate|finder\.py)"),
}  # fmt: skip
"""A pattern of each trouble; findings are joined into one line each. A healthy run has none."""

FALSE: dict[str, str] = {
    "tail_even": r"✖|[Rr]ank \d (is late|causes)|[Ee]valuation takes|waits longer for its input",
    "offload_even": r"✖|[Rr]ank \d (is late|causes)|[Ee]valuation takes|waits longer for its input",
    "finder_even": r"✖|[Rr]ank \d (is late|causes)|[Ee]valuation takes|waits longer for its input",
    "scan_of_many": r"[Rr]ank \d is late|[Ee]valuation takes",
    "hook_of_one": r"[Rr]ank 0 is late|longer for its input",
    "large_and_count": r"[Rr]ank 1.* input|[Rr]ank 0 is late",
    "scores_and_average": r"[Rr]ank [12] is late|longer for its input",
    "sorted_and_validated": r"[Rr]ank \d is late",
    "shapes_and_records": r"longer for its input|[Ee]valuation takes|compil[^.]* on rank 0",
    "server_and_file": r"[Rr]ank [12] is late",
    "filter_and_norms": r"[Rr]ank 0 is late",
    "finder_and_colors": r"[Rr]ank 0 is late|longer for its input|[Ee]valuation takes",
}


def told(name: str, findings: list[str]) -> tuple[list[bool], bool]:
    """Which of a case's troubles a finding names, and whether a sentence is false by its pattern."""
    lines = [" ".join(finding.split()) for finding in findings]
    named = [any(re.search(pattern, line) for line in lines) for pattern in SAYS.get(name, ())]
    return named, any(re.search(FALSE[name], line) for line in lines)


_BY_HASH = sorted(CASES, key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
ASIDE = frozenset(case.name for case in _BY_HASH[:6])
"""The first six by hash: not read before the causes that the other half shows are mended."""
