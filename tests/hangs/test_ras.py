"""NCCL's RAS report alone: ranks are named where the counts tell, and a job that runs is left in peace."""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from ras_text import is_outlier, report, report_json
from test_generated_hangs import planted

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.discover import find_evidence
from traceops.report.hang_text import hang_sentence

NAMES = {
    "all_reduce": "AllReduce",
    "_all_gather_base": "AllGather",
    "_reduce_scatter_base": "ReduceScatter",
    "broadcast": "Broadcast",
}
EVEN = {rank: {"AllReduce": 640, "AllGather": 12} for rank in range(8)}


def said(folder: Path, text: str, name: str = "ras.txt") -> list[str]:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(text)
    try:
        return [event.text for event in diagnose(folder).evidence.log]
    except InputError as error:
        assert "no evidence" in str(error)
        return []


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_rank_behind_is_named_in_both_forms_and_nobody_is_accused(tmp_path: Path, form: str) -> None:
    counts = {**EVEN, 5: {"AllReduce": 636, "AllGather": 12}}
    make, name = (report, "ras.txt") if form == "text" else (report_json, "ras.json")
    (tmp_path / name).write_text(make({"fa93daea854b060b": counts}))
    diagnosis = diagnose(tmp_path)
    assert diagnosis.roots == ()
    assert hang_sentence(diagnosis).startswith(
        "Rank 5 has launched AllReduce 636 of communicator fa93daea854b060b, 4 behind the 7 others (640)"
    )


@pytest.mark.parametrize("name", ["ras.txt", "ras.json", "ncclras.out"])
def test_a_job_that_runs_is_quiet(tmp_path: Path, name: str) -> None:
    text = report_json({"1a": EVEN}) if name.endswith("json") else report({"1a": EVEN})
    assert said(tmp_path, text, name) == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_rank_that_did_not_answer_is_named(tmp_path: Path, form: str) -> None:
    counts = {rank: its for rank, its in EVEN.items() if rank != 3}
    make, name = (report, "ras.txt") if form == "text" else (report_json, "ras.json")
    (told,) = said(tmp_path, make({"1a": counts}, {"1a": (3,)}), name)
    assert told.startswith("Rank 3 did not answer for communicator 1a")


HEAD = report({"1a": EVEN}).partition("Errors\n======")[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "INCOMPLETE\n  Missing communicator data from 1 job process\n"
            "  Process 1003 on node 10.0.0.1 managing GPU 3\n\n",
            "1 processes of the job are silent: RAS has no data of them: process 1003 on node 10.0.0.1 (GPU 3)",
        ),
        (
            "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
            "  Process 1003 on node 10.0.0.1 managing GPU 3\n\n",
            "1 processes of the job are dead or cannot be reached: process 1003 on node 10.0.0.1 (GPU 3)",
        ),
        (
            "#0-0 (1a) ERROR\n  Asynchronous error on 1 rank\n"
            "  Rank 2 reported Remote process error -- GPU 2 managed by process 1002 on node 10.0.0.1\n\n",
            "Rank 2 reports an error of communicator 1a: Remote process error",
        ),
        (
            "#0-0 (1a) MISMATCH\n  Communicator ranks have different status\n  7 ranks have status RUNNING\n"
            "  Rank 6 has status NOCOMM -- GPU 6 managed by process 1006 on node 10.0.0.1\n\n",
            "Rank 6 no longer has communicator 1a: its process left it or never joined (NOCOMM)",
        ),
        (
            "#0-0 (1a) MISMATCH\n  Communicator ranks have different status\n  6 ranks have status RUNNING\n"
            "  2 ranks have status ABORT\n  Rank 1 -- GPU 1 managed by process 1001 on node 10.0.0.1\n"
            "  Rank 4 -- [process information not found]\n\n",
            "Ranks 1, 4 aborted communicator 1a (ABORT)",
        ),
    ],
)
def test_each_state_of_the_report_is_told(tmp_path: Path, text: str, told: str) -> None:
    assert said(tmp_path, f"{HEAD}Errors\n======\n\n{text}\nWarnings\n========\n\n") == [told]


def test_a_report_that_is_cut_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(report_json({"1a": EVEN})[:-40])
    with pytest.raises(InputError, match=r"ras.json.*no whole report"):
        diagnose(tmp_path / "ras.json")


@examples(40)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["host", "gpu", "lost", "size", "op", "network"]),
    st.sampled_from([4, 8, 16]),
)
def test_in_generated_hangs_each_rank_that_the_counts_tell_apart_is_named(tmp_path_factory, seed, kind, world):
    found = planted(seed, kind, world)
    if found is None:
        return
    job, fault = found
    counts: dict[str, dict[int, dict[str, int]]] = {}
    groups = list(job.groups)
    for hash_, group in enumerate(groups, 1):
        counts[f"{hash_:x}"] = {place: defaultdict(int) for place, _ in enumerate(job.groups[group])}
    for rank, index in job.state:
        step = job.steps[index]
        if not step.p2p:
            op = "broadcast" if kind == "op" and (rank, index) == (fault.rank, fault.at) else step.op
            members = job.groups[step.group]
            counts[f"{groups.index(step.group) + 1:x}"][members.index(rank)][NAMES[op]] += 1
    folder = tmp_path_factory.mktemp("ras")
    for name, text in (("ras.txt", report(counts)), ("ras.json", report_json(counts))):
        told = said(folder / name, text, name)
        for hash_, of_comm in counts.items():
            for op in NAMES.values():
                by_count = defaultdict(list)
                for rank, its in of_comm.items():
                    by_count[its[op]].append(rank)
                most = max(by_count, key=lambda count: (len(by_count[count]), count))
                for count, ranks in by_count.items():
                    if count != most and (name.endswith("json") or is_outlier(len(ranks), len(of_comm))):
                        assert any(f"launched {op} {count} of communicator {hash_}," in text for text in told)
        if all(len({json.dumps(its, sort_keys=True) for its in of_comm.values()}) == 1 for of_comm in counts.values()):
            assert told == []


@pytest.mark.parametrize(("name", "rank"), [("hang_skip", 3), ("hang_mismatch", 3), ("hang_skip_fsdp2", 1)])
def test_of_real_hangs_the_counts_of_their_dumps_name_the_rank(tmp_path: Path, name: str, rank: int) -> None:
    with tarfile.open(Path(__file__).parents[1] / "data" / "hangs" / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    records = find_evidence(tmp_path / name).records
    counts = {its: defaultdict(int) for its in records}
    for its, record in records.items():
        for op in record.operations:
            if record.groups[op.group].is_of_all and op.op in NAMES:
                counts[its][NAMES[op.op]] += 1
    told = said(tmp_path / "ras", report({"1a": counts}))
    assert told and all(text.startswith(f"Rank {rank} has launched") for text in told)
