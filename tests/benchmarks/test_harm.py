"""The programs that are compared with and without traceops, and that a difference is seen."""

from __future__ import annotations

from changed import replace

from benchmarks.harm.__main__ import LISTED, Outcome, captured, python, run
from benchmarks.harm.programs import DISTRIBUTED, PROGRAMS, SIGNALS, Program


def test_there_are_many_programs_and_ways_to_end_them() -> None:
    names = [program.name for program in (*PROGRAMS, *DISTRIBUTED)]
    assert len(names) == len(set(names)) >= 70 and len(SIGNALS) >= 20
    assert set(LISTED) <= set(names)


def test_a_program_is_the_same_under_the_capture() -> None:
    source = "import json, sys\nopen('kept', 'w').write('x')\nprint(json.V, sys.argv)\nsys.exit(7)"
    program = Program("x", source, ("--lr", "1"), files=(("json.py", "V = 5"),))
    theirs, ours = run(program, python), run(program, captured)
    assert (theirs.code, theirs.stdout) == (7, b"5 ['main.py', '--lr', '1']\n") and set(theirs.files) == {
        "main.py", "json.py", "kept",
    }  # fmt: skip
    assert theirs.differences(ours) == []


def test_every_difference_is_named() -> None:
    one = Outcome(0, b"a", b"", {"weights": "1", "log": "2"})
    other = replace(one, code=1, stderr=b"x", files={"weights": "3", "log": "2"})
    assert one.differences(other) == ["exit code 1, not 0", "stderr b'x', not b''", "files: weights"]
