"""NCCL's own reports: RAS, the Inspector, and calls that ranks make differently."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest
from drawn import examples
from generated_hang import write
from hypothesis import given
from hypothesis import strategies as st
from inspector_lines import coll, p2p
from inspector_lines import dump as inspector_dump
from ras_text import is_outlier, report, report_json
from test_real_hangs import planted

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.fabric.discover import named_fabric, run_fabric
from traceops.fabric.to_json import fabric_json
from traceops.hangs.diagnose import diagnose
from traceops.hangs.discover import find_evidence
from traceops.report.hang_text import hang_sentence, read_text, what_would_decide
from traceops.rules.failures import MISMATCH

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
        "Rank 5 has launched AllReduce 636 of communicator fa93daea854b060b, 4 fewer than the 7 others (640)"
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


STEP = (("all_reduce", 100), ("all_reduce", 100), ("all_reduce", 30), ("all_reduce", 7))
WARM_UP = (("broadcast", 5), ("all_reduce", 230), ("all_reduce", 7))


def dump(calls, finished, ranks=(0, 1)):
    """A rank's record of these (operation, elements), of which so many are finished and the next has started."""
    entries = [
        {
            "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1,
            "p2p_seq_id": 0, "op_id": i, "profiling_name": f"nccl:{op}", "time_created_ns": 10**18 + i,
            "input_sizes": [[n]], "input_dtypes": ["Float"], "output_sizes": [[n]], "output_dtypes": ["Float"],
            "state": "completed" if i < finished else "started" if i == finished else "scheduled",
            "time_discovered_started_ns": 1, "time_discovered_completed_ns": None, "retired": i < finished,
            "is_p2p": False, "frames": [],
        }
        for i, (op, n) in enumerate(calls)
    ]  # fmt: skip
    status = {"last_enqueued_collective": len(calls), "last_completed_collective": finished}
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {"0": status}, "entries": entries}


def named(found):
    return [(root.rule, root.ranks, root.confidence) for root in found.roots]


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("fault", ["skip", "size", "op", "extra"])
@pytest.mark.parametrize("limps", [False, True])
def test_of_two_ranks_the_one_that_breaks_the_pattern_is_named(tmp_path, odd, fault, limps):
    good = [*WARM_UP, *STEP * 6, *STEP * 3]
    at = len(WARM_UP) + 6 * len(STEP) + 3
    bad = list(good)
    if fault == "skip":
        del bad[at]
    elif fault == "size":
        bad[at] = ("all_reduce", 9)
    elif fault == "op":
        bad[at] = ("_all_gather_base", 7)
    else:
        bad.insert(at, ("all_reduce", 9))
    # NCCL may let two ranks get through a call that does not belong together, and hang at the very end.
    length = min(len(good), len(bad))
    finished = length - 1 if limps else at
    calls = {odd: bad[:length], 1 - odd: good[:length]}

    found = diagnose(write(tmp_path, {rank: dump(calls[rank], finished) for rank in (0, 1)}))

    assert named(found) == [("TO-H002", (odd,), "high")]
    assert found.roots[0].sequence == at + 1
    assert ("never ended" in found.roots[0].message) == limps


def test_without_a_pattern_both_are_named(tmp_path):
    good = [("all_reduce", n) for n in range(1, 20)]
    bad = [*good[:12], ("all_reduce", 99), *good[12:18]]

    found = diagnose(write(tmp_path, {0: dump(good, 12), 1: dump(bad, 12)}))

    assert named(found) == [("TO-H002", (0, 1), "medium")]
    assert "which call is wrong is unknown" in found.roots[0].message


def test_counts_of_different_groups_are_not_a_mismatch_of_the_past(tmp_path):
    one, other = [("all_reduce", n) for n in range(1, 20)], [("all_reduce", n) for n in range(101, 119)]

    found = diagnose(write(tmp_path, {0: dump([*one, ("barrier", 1)], 19), 1: dump([*other, ("all_reduce", 1)], 19)}))

    assert [root.sequence for root in found.roots] == [20]


def test_sizes_that_may_differ_are_no_mismatch_of_the_past(tmp_path):
    calls = [("all_reduce", 4)] * 8
    one, other = [*calls, ("all_to_all", 5), *calls], [*calls, ("all_to_all", 8), *calls[:-1]]

    found = diagnose(write(tmp_path, {0: dump(one, 16), 1: dump(other, 16)}))

    assert named(found) == [("TO-H001", (1,), "high")]


ABORTED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 932980 vs 699052. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
)
REPORT = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_23:52:17\n  host      : localhost\n"
    "  rank      : {rank} (local_rank: {rank})\n  exitcode  : -6 (pid: 2998)\n"
)


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_rank_that_gloo_aborts_is_not_blamed_for_the_call_of_another(tmp_path, odd, ended):
    good = [*WARM_UP, *STEP * 6]
    calls = {rank: [*good, ("all_reduce", 999 if rank == odd else 100)] for rank in range(3)}
    alive = [rank for rank in range(3) if rank != ended]
    folder = write(tmp_path, {rank: dump(calls[rank], len(good), ranks=(0, 1, 2)) for rank in alive})
    (folder / f"rank_{ended}.stderr.log").write_text(ABORTED)
    (folder / "torchrun.log").write_text(REPORT.format(rank=ended))

    found = diagnose(folder)

    assert [(root.rule, root.ranks) for root in found.roots] == [("TO-H002", (odd,))]


@pytest.mark.parametrize(
    ("said", "exit_code", "rule"), [(ABORTED, -6, "TO-H002"), ("ValueError: boom\n", 3, "TO-H004")]
)
def test_a_rank_that_was_ended_before_it_wrote_its_record_is_no_root(tmp_path, said, exit_code, rule):
    """As `traceops run` left it on a busy machine: rank 1 ended, rank 2 was ended for it, rank 0 saved its record."""
    good = [*WARM_UP, *STEP * 6]
    record = dump([*good, ("all_reduce", 100)], len(good), ranks=(0, 1, 2))
    folder = write(tmp_path, {0: record})
    (folder / "rank_1.stderr.log").write_text(said)
    also = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : -15 (pid: {rank})\n"
    first = REPORT.format(rank=1).replace("-6", str(exit_code))
    (folder / "torchrun.log").write_text(f"Failures:\n[1]:\n{also.format(rank=0)}[2]:\n{also.format(rank=2)}{first}")

    found = diagnose(folder)

    assert [(root.rule, root.ranks) for root in found.roots] == [(rule, (1,))]


def test_the_advice_points_to_nothing_that_may_not_be_shown():
    """Dumps without stacks, and logs, name no line of code."""
    assert "above" not in MISMATCH.advice and "below" not in MISMATCH.advice


VERSIONS = pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])


def write_inspector(
    folder: Path, ends: dict[int, int], every_s: float = 4, version: str = "v4.2", op: str = "AllReduce"
):
    """A file a rank, in which operations 1 to ends[rank] stand, eight a dump."""
    for rank, end in ends.items():
        numbers = range(1, end + 1)
        dumps = [numbers[at : at + 8] for at in range(0, end, 8)]
        text = "".join(
            inspector_dump(
                (coll(number, op, gbs=341 + rank) for number in some), rank, len(ends), at * every_s, version
            )
            for at, some in enumerate(dumps)
        )
        if version == "v4.0":
            text = "".join(line for line in text.splitlines(True) if "dump_stats" not in line)
        (folder / f"host-1-pid{1000 + rank}.log").write_text(text)
    return folder


@VERSIONS
def test_equal_ranks_are_read_and_nobody_is_named(tmp_path: Path, version: str) -> None:
    diagnosis = diagnose(write_inspector(tmp_path, dict.fromkeys(range(4), 57), version=version))
    assert diagnosis.roots == () and diagnosis.evidence.log == ()
    assert read_text(diagnosis) == (
        "4 files of NCCL Inspector: 57 collectives of ranks 0–3, AllReduce of 268 MB at 342 GB/s (median); "
        "4 files in all"
    )
    assert "No rank hangs" in hang_sentence(diagnosis)


@VERSIONS
def test_the_rank_on_which_inspector_stopped_is_a_lead_and_no_cause(tmp_path: Path, version: str) -> None:
    diagnosis = diagnose(write_inspector(tmp_path, {0: 57, 1: 57, 2: 57, 3: 41}, version=version))
    assert diagnosis.roots == ()
    (event,) = diagnosis.evidence.log
    assert (event.kind, event.op, event.sequence, event.rank) == ("inspector", "AllReduce", 41, None)
    assert Path(event.path).name == "host-1-pid1003.log"
    said = hang_sentence(diagnosis)
    assert said.startswith(
        "Rank 3 of communicator 7f8c496ae9f661 (4 ranks): the last AllReduce that NCCL Inspector wrote is #41, and it "
        "wrote on to #57 for ranks 0–2, over 8 s. All ranks take part in each AllReduce, so more was done there"
    )
    assert "does not say whether the job hangs" in said
    assert "how its process ended" in what_would_decide(diagnosis)


def test_a_difference_within_one_write_or_between_short_writes_proves_nothing(tmp_path: Path) -> None:
    for name, ends, every_s in (("one", {0: 48, 1: 41}, 30), ("short", {0: 57, 1: 41}, 0.0005)):
        (tmp_path / name).mkdir()
        assert diagnose(write_inspector(tmp_path / name, ends, every_s)).evidence.log == ()


def test_a_rank_may_be_behind_in_what_does_not_need_all(tmp_path: Path) -> None:
    (event,) = diagnose(write_inspector(tmp_path, {0: 57, 1: 41}, op="Broadcast")).evidence.log
    assert "#41" in event.text and "take part" not in event.text


def test_bad_lines_hide_no_good_ones(tmp_path: Path) -> None:
    whole = inspector_dump([coll(1), coll(2), p2p(1, 2)], 0)
    long = inspector_dump([coll(3)[:-1] + ',"event_trace_sn":{"kernel_events":[' + "1," * 50_000 + "1]}}"], 0)
    path = tmp_path / "a.log"
    path.write_text(whole + '{"header":{"id":7}}\n' + "{" * 5000 + "\n" + long + inspector_dump([coll(4)], 0)[:-30])
    fabric = named_fabric([path])
    assert {(row.op, row.last, row.count) for row in fabric.inspector.completed} == {
        ("AllReduce", 3, 3),
        ("Send", 1, 1),
    }
    assert fabric.problems == (
        (str(path), "2 lines of NCCL Inspector cannot be read (cut or damaged) and are left out"),
    )


def test_operations_without_their_marker_are_tied_to_no_rank(tmp_path: Path) -> None:
    """From v4.3 on only the marker says of which rank lines are: after a damaged one they may be any rank's."""
    path = tmp_path / "a.log"
    other = inspector_dump([coll(900)], 1, version="v4.3", comm="0xb").split("\n", 1)
    path.write_text(inspector_dump([coll(1)], 0, version="v4.3", comm="0xa") + other[0][:-9] + "\n" + other[1])
    fabric = named_fabric([path])
    assert [(row.communicator, row.last) for row in fabric.inspector.completed] == [("a", 1)]
    assert any("stand without the line" in what for _, what in fabric.problems)
    path.write_text(other[1])
    with pytest.raises(InputError, match="give the file whole"):
        diagnose(path)


def test_gzip_a_paste_and_a_name_that_says_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    text = inspector_dump([coll(1)], 0, 1)
    (tmp_path / "x.bin.gz").write_bytes(gzip.compress(text.encode()))
    assert "1 collective of rank 0" in read_text(diagnose(tmp_path / "x.bin.gz"))
    paste = "my training\nRuntimeError: loss is NaN\n" + text + "{'loss': 1}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(paste.encode())))
    main(["diagnose", "-", "-o", str(tmp_path / "out"), "--format", "json"])
    assert "1 file of NCCL Inspector: 1 collective of rank 0" in " ".join(capsys.readouterr().out.split())


def test_the_doctor_tells_what_it_read_and_writes_bandwidths(tmp_path: Path, capsys) -> None:
    write_inspector(tmp_path, {0: 9, 1: 9})
    main(["doctor", "--from", str(tmp_path), "-o", str(tmp_path / "out")])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "2 files of NCCL Inspector: 9 collectives of ranks 0–1, AllReduce of 268 MB at 342 GB/s (median)"
        in said.replace("0-1", "0–1")
    )
    rows = json.loads((tmp_path / "out" / "doctor.json").read_text())["inspector"]
    assert [(row["rank"], row["busbw_gbs"], row["count"]) for row in rows] == [(0, 341.0, 9), (1, 342.0, 9)]
    assert "What NCCL Inspector measured" in (tmp_path / "out" / "doctor.html").read_text()


def test_beside_traces_the_report_has_the_bandwidths(tmp_path: Path) -> None:
    fabric = run_fabric(str(write_inspector(tmp_path, {0: 9, 1: 9})))
    assert fabric is not None
    assert [(row.rank, row.op, row.busbw_gbs) for row in fabric_json(fabric).inspector] == [
        (0, "AllReduce", 341.0),
        (1, "AllReduce", 342.0),
    ]
