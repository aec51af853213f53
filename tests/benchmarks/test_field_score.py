"""The registry of public inputs is whole, and what is wrong of them counts as wrong."""

from __future__ import annotations

import hashlib
import re

import pytest
from changed import replace

from benchmarks.field.inputs import INPUTS
from benchmarks.field.score import Scored, files_of, first_sentence, markdown, score, totals, verdict

STARVES = "x: 1 ranks\n▲ Rank 0 waits for its host to launch kernels for 3 ms of each 5 ms step (TO-I001).\n"
ONE = replace(
    INPUTS[0], right="waits for its host", abstains="Not judged", never="✔", paths=("trace.json",), held=False
)


def test_there_are_many_inputs_of_many_kinds_half_of_them_set_aside():
    assert len(INPUTS) >= 80 and len({one.kind for one in INPUTS}) >= 12
    for wave in (1, 3, 4):
        some = [one for one in INPUTS if one.wave == wave]
        assert abs(2 * sum(one.held for one in some) - len(some)) <= 1
    later = [one for one in INPUTS if one.wave == 2]
    assert len(later) >= 15 and not any(one.held for one in later)
    assert len({one.name for one in INPUTS}) == len(INPUTS)
    asked = {(one.origin, one.paths, one.command) for one in INPUTS}  # one log is read for both
    assert len(asked) == len(INPUTS)


def test_an_input_says_where_it_is_from_what_is_true_and_what_may_be_said():
    for one in INPUTS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(@[0-9a-f]{40}|#\S+)", one.origin)
        assert re.fullmatch(r"[0-9a-f]{64}", one.sha256) and all(one.paths)
        assert len(one.truth) > 20 and (one.right or one.abstains)
        for pattern in (one.right, one.abstains, one.never):
            re.compile(pattern)


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        (STARVES, "right"),
        (STARVES.replace("waits for its host", "waits\n  for its host"), "right"),
        ("● Nothing serious found in what could be judged. Not judged: 60 %.", "abstains"),
        ("✖ Rank 3 died.", "wrong"),
        (f"{STARVES}✔ all is well", "wrong"),
        ("", "wrong"),
        ("▲ waits for its host\nTraceback (most recent call last)\nthis is a mistake in traceops; report it", "wrong"),
    ],
)
def test_what_is_said_is_right_abstains_or_wrong(output, outcome):
    assert score(ONE, output).outcome == outcome


def test_the_table_says_why_something_is_wrong_and_counts_the_half_that_was_set_aside():
    rows = [score(ONE, STARVES), replace(score(replace(ONE, held=True), "✔ fine")), Scored(ONE, "not at hand")]
    table = markdown(rows)
    assert "**wrong**: it says '✔'" in table and "| right |" in table
    assert totals(rows)[1] == "Set aside: 1 inputs of 1 kinds: 1 wrong."
    assert verdict(STARVES).startswith("▲ Rank 0")


def test_a_file_that_is_not_the_one_that_was_judged_is_not_scored(tmp_path):
    here = replace(ONE, sha256=hashlib.sha256(b"{}").hexdigest())
    assert files_of(here, tmp_path, fetch=False) is None
    path = tmp_path / here.name / "trace.json"
    path.parent.mkdir()
    path.write_bytes(b"{}")
    assert files_of(here, tmp_path, fetch=False) == [path]
    path.write_bytes(b"[]")
    assert files_of(here, tmp_path, fetch=False) is None


def test_what_the_first_sentence_names_is_counted_where_it_is_judged():
    said = verdict("▲ 1 message of trouble: “it failed”. Read: 1 log.\nNot evaluated: TO-H001, x\n")
    assert first_sentence(said) == "▲ 1 message of trouble: “it failed”. "
    assert first_sentence("✖ Rank 3 died. [TO-H004, error] exit code: 1") == "✖ Rank 3 died. "
    rows = [Scored(ONE, "right", named=named) for named in (True, False, None)]
    assert totals(rows)[-1] == "The first sentence names the root: 1 of 2."
    assert markdown(rows).count("(root not named)") == 1
