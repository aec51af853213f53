"""What lies beside traces is read as far as it can be believed."""

import json
import random

import pytest
from observed_run import STACKS, usual, write_machine, write_rank

from traceops.across.whole_run import whole_run
from traceops.core.rank_files import OBSERVED_FILE, RECORD, STEPS_FILE
from traceops.traces.observed import read_machines, read_observed


def test_what_was_written_is_read(tmp_path):
    write_rank(tmp_path, 3, [usual()] * 20, extra=[["m", 5, 10, 0, 9], ["m", 15, 40, 1, 39]])
    seen, problem = read_observed(str(tmp_path), 3)
    assert problem is None and len(seen.steps) == 20 and seen.rank == 3
    assert len(seen.stacks) == len(STACKS) and seen.samples.shape[1] == 3
    assert seen.allocator.tolist() == [[5, 10, 0, 9], [15, 40, 1, 39]]


def test_nothing_there_is_nothing(tmp_path):
    assert read_observed(str(tmp_path), 0) == (None, None) and read_machines(str(tmp_path)) == []


def test_a_file_that_is_none_is_told(tmp_path):
    write_rank(tmp_path, 0, [usual()])
    (tmp_path / "rank_0" / STEPS_FILE).write_bytes(b"something else")
    seen, problem = read_observed(str(tmp_path), 0)
    assert seen is None and STEPS_FILE in problem


def test_a_record_that_was_cut_off_is_left_out(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 9)
    path = tmp_path / "rank_0" / STEPS_FILE
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read_observed(str(tmp_path), 0)[0].steps) == 8


def test_zeros_at_the_end_are_no_steps(tmp_path):
    """A machine lost its power: steps of no time were the most, and analyze ended with a division by zero."""
    write_rank(tmp_path, 0, [usual()] * 9)
    path = tmp_path / "rank_0" / STEPS_FILE
    whole = path.read_bytes()
    for tail in (whole + bytes(4096), whole[:-5] + bytes(4101)):
        path.write_bytes(tail)
        seen, problem = read_observed(str(tmp_path), 0)
        assert problem is None and len(seen.steps) == 9 and (seen.steps["host_us"] > 0).all()


@pytest.mark.parametrize("garbage", [b"\xff" * 240, b"a text of somebody else's file. " * 9])
def test_what_follows_damage_is_left_out_and_that_is_told(tmp_path, garbage):
    """A disk's garbage was believed: steps of an hour."""
    write_rank(tmp_path, 0, [usual()] * 40)
    path = tmp_path / "rank_0" / STEPS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: -20 * RECORD.size] + garbage)
    seen, problem = read_observed(str(tmp_path), 0)
    assert len(seen.steps) == 20 and "is damaged: of its steps the first 20 are used" in problem
    assert seen.steps["host_us"].max() < 60_000_000


def test_damage_costs_what_it_touches(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 40)
    path = tmp_path / "rank_0" / OBSERVED_FILE
    wrong = [
        "no json", "[]", "{}", '["f"]', '["f", 1, 2, 3, 4, 5]', '["s", [10000]]', '["s", "x"]', '["t", [1, 2]]',
        '["t", [0, 99999, 5]]', '["t", [0, -1, 5]]', '["m", 1]', '["m", 1, 2, 3, NaN]', '["c", 1, 2, 3, 4, 5, 6]',
        '["x", 1]', "[" * 5000, '["t", [true, 0, 5]]',
    ]  # fmt: skip
    path.write_text(path.read_text() + "\n".join(wrong) + "\n")
    seen = read_observed(str(tmp_path), 0)[0]
    assert len(seen.samples) and whole_run([seen]).typical_steps == 39


def test_garbage_never_raises(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 30)
    draw = random.Random(11)
    good = {name: (tmp_path / "rank_0" / name).read_bytes() for name in (STEPS_FILE, OBSERVED_FILE)}
    for _ in range(60):
        for name, content in good.items():
            broken = bytearray(content)
            for _ in range(draw.randrange(1, 30)):
                broken[draw.randrange(len(broken))] = draw.randrange(256)
            (tmp_path / "rank_0" / name).write_bytes(bytes(broken))
        seen, _ = read_observed(str(tmp_path), 0)
        if seen is not None:
            whole_run([seen])


def test_a_machines_lines_are_believed_one_by_one(tmp_path):
    good = ["r", 1_800_000_001_000, 0, 100, 5.0, 1.0, 0, 1, 9.0]
    wrong = [
        ["r", 1],
        ["r", "x", 0, 100, 5.0, 1.0, 0, 1, 9.0],
        ["G", 1, 0, 1, 1, 1, 1, 1, 1, 5, []],
        ["g", 0, 1, 2, 3, 4],
    ]
    write_machine(tmp_path, [good, *wrong, ["g", 0, "GPU-a", None, 1980, None]])
    [log] = read_machines(str(tmp_path))
    assert log.ranks == (tuple(good[1:]),) and log.devices == () and log.gpus[0].most_mhz == 1980
    assert json.dumps(log.ranks)
