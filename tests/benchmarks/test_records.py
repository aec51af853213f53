"""The tables of benchmarks/*/*.jsonl are whole: names are their own, patterns compile, programs are there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from benchmarks import ROOT
from benchmarks.gpu_traces.truth import EXPECTED
from benchmarks.observed.registry import ONE_GPU
from benchmarks.pairs.cases import CASES
from benchmarks.records import patterns, read_records

ELSEWHERE = ("ddp_comm_hook", "multi_process_metrics")  # of accelerate's examples, see benchmarks/pairs/runs.py


@dataclass(frozen=True)
class Row:
    name: str
    right: str


@pytest.mark.parametrize("records", [EXPECTED, CASES, ONE_GPU], ids=["gpu_traces", "pairs", "observed"])
def test_no_two_records_have_one_name(records):
    names = [one.name for one in records]
    assert len(names) > 20 and sorted(set(names)) == sorted(names)


def test_patterns_compile_and_a_trace_has_one_of_what_is_right():
    for one in EXPECTED:
        assert one.right
        for pattern in (one.right, one.abstains, one.never):
            re.compile(pattern)


def test_every_program_of_a_record_is_there():
    pairs = {case.program for case in CASES} - {*ELSEWHERE}
    missing = [name for name in pairs if not (ROOT / f"benchmarks/pairs/programs/{name}.py").is_file()]
    alone = [one.command[0].replace("{one_gpu}", "benchmarks/observed/programs") for one in ONE_GPU]
    assert not missing and all((ROOT / path).is_file() for path in alone)


def test_a_pattern_that_records_share_is_named_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"name": "one", "right": "{NO_EVENTS}|x{2}"}\n')
    (row,) = read_records(path, Row)
    assert row == Row("one", patterns()["NO_EVENTS"] + "|x{2}")
    path.write_text('{"name": "one", "right": "{NO_SUCH}"}\n')
    with pytest.raises(KeyError, match="NO_SUCH"):
        read_records(path, Row)
