"""Dumps read in several processes: the same as read here, and a bad one costs itself only."""

import random

import pytest
from generated_hang import Fault, dumps, random_job, run, write

from traceops.hangs import given as run_files
from traceops.hangs.diagnose import diagnose


@pytest.fixture
def folder(tmp_path):
    job = random_job(random.Random(5), 32)
    own = job.own(9)
    fault = Fault("host", 9, own[len(own) // 2])
    return write(tmp_path / "job", dumps(run(job, [fault]), [fault]))


def test_processes_and_none_read_the_same(folder, monkeypatch):
    here = diagnose(folder, jobs=1)
    monkeypatch.setattr(run_files, "_POOL_WORTH_BYTES", 0)

    assert diagnose(folder, jobs=3) == here
    assert [root.ranks for root in here.roots] == [(9,)]


def test_a_bad_dump_costs_itself_only(folder, monkeypatch):
    monkeypatch.setattr(run_files, "_POOL_WORTH_BYTES", 0)
    (folder / "nccl_trace_rank_3").write_bytes(b"\x80\x02cos\nsystem\n.")

    found = diagnose(folder, jobs=3)

    assert [root.ranks for root in found.roots] == [(9,)]
    ((path, problem),) = found.evidence.problems
    assert path.endswith("nccl_trace_rank_3")
    assert "was not opened" in problem
