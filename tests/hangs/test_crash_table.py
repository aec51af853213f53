"""The table of crashes: each kind is a rule's, and what is derived from it agrees with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import traceops.hangs
from traceops.hangs.crashes import ADVICE, ALONE, DID, NEEDLES, RULE_OF, WORDINGS, crash_kind, told_alone
from traceops.hangs.diagnose import diagnose
from traceops.report.hang_text import hang_sentence, root_advice
from traceops.rules.failures import BY_ID

ONLY_ERROR = Path(__file__).with_name("only_error")  # in the words of NCCL, torch and others; hosts are made up
CODE = sorted(Path(traceops.hangs.__file__).parent.rglob("*.py"))


def test_each_kind_has_a_rule_and_a_clause() -> None:
    assert set(RULE_OF) == set(DID) and set(RULE_OF.values()) <= set(BY_ID)
    assert all(re.match(r"[a-z]", did) and not did.endswith(".") for did in DID.values())
    assert all(advice.endswith((".", ")")) for advice in ADVICE.values())


def test_each_wording_is_found_where_its_text_stands() -> None:
    for wording in WORDINGS:
        text = " … ".join(wording.words)
        assert crash_kind(text, raised=False) is not None, wording
        if wording.kind in ALONE:
            assert told_alone(text) and any(needle.decode() in text for needle in NEEDLES), wording


def test_kinds_that_code_names_are_in_the_table() -> None:
    named = re.findall(r"CrashKind, \.\.\.\] = \(([^)]*)\)", "".join(path.read_text() for path in CODE))
    kinds = {kind for group in named for kind in re.findall(r'"(\w+)"', group)}
    assert len(kinds) > 5 and kinds <= set(RULE_OF)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "RuntimeError: NCCL error in: /b/c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
            "invalid argument",
        ),
        ("RuntimeError: NCCL error in: /b/c10d/NCCLUtils.hpp:82, some new words, NCCL version 2.4.8", "some new words"),
        ("RuntimeError: [/b/gloo/transport/tcp/pair.cc:799] connect [10.0.0.9]:13195: Connection refused", "10.0.0.9"),
        (
            "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: Connection reset by peer",
            "got no NCCL id",
        ),
        ("n1:7:7 [0] init.cc:981 NCCL WARN Invalid rank requested : 2/2", "rank outside its world"),
        (
            "n1:7:9 [1] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<5> with status=4 "
            "opcode=1 len=0 vendor err 81 (Send)",
            "status 4: local protection error",
        ),
        (
            "accelerate <command> [<args>] launch: error: argument --machine_rank: invalid int value: ''",
            "--machine_rank",
        ),
    ],
)
def test_the_only_error_of_a_log_is_the_finding(told, text: str, says: str) -> None:
    diagnosis = told(f"{text}\n")
    (root,) = diagnosis.roots
    assert says in hang_sentence(diagnosis) and root_advice(root)


def test_an_echo_beside_a_cause_stays_an_echo(told) -> None:
    refused = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:799] connect [10.0.0.9]:13195: Connection refused"
    frames = 'Traceback (most recent call last):\n  File "/w/a.py", line 4, in f\n    g()\n'
    (root,) = told(f"[rank1]: {frames}[rank1]: ValueError: bad batch\n{refused}\n").roots
    assert "bad batch" in root.statement


@pytest.mark.parametrize("path", sorted(ONLY_ERROR.glob("*.txt")), ids=lambda path: path.stem)
def test_each_such_log_is_a_case_of_its_kind(path: Path) -> None:
    (root,) = diagnose(path).roots
    expected = {"nccl_usage_srun": "nccl_usage", "gloo_refused": "gloo_connect"}.get(path.stem, path.stem)
    assert root.crash is not None and root.crash.kind == expected
