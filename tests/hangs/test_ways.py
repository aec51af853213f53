"""NCCL's log and the topology beside a hang: the way between the ranks that hang is part of the diagnosis."""

import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.hangs.diagnose import diagnose
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_text import root_advice
from traceops.rules.diagnosis import beside_the_roots, judge_diagnosis

DATA = Path(__file__).parent.parent / "data"
TOPOLOGY = DATA / "topology"
ACROSS = (TOPOLOGY / "l4x2_bonded.txt").read_text()  # two GPUs, SYS
NVLINK = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-31\t0\nGPU1\tNV18\t X \t0-31\t0\n"
P2P = "".join(
    f"NCCL INFO Channel 0{one}/0 : {one}[{one}] -> {other}[{other}] via P2P/CUMEM\n" for one, other in ((0, 1), (1, 0))
)


def timed_out(sequence=3):
    return "".join(
        f"[rank{rank}]:[E1111 17:01:37.123 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=14845952, NumelOut=14845952, "
        f"Timeout(ms)=600000) ran for 60004{rank} milliseconds before timing out.\n"
        for rank in (0, 1)
    )


def told(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.log").write_text(text)
    return diagnose(tmp_path)


def shown(diagnosis):
    out = io.StringIO()
    print_diagnosis(diagnosis, out, beside=beside_the_roots(diagnosis, judge_diagnosis(diagnosis)))
    return " ".join(out.getvalue().split())


def test_an_early_hang_over_p2p_across_sockets_is_p2p_that_is_broken(tmp_path):
    diagnosis = told(tmp_path, nccl=P2P, topo=ACROSS, train=timed_out())
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.cause, root.confidence) == ("TO-H006", (0, 1), "p2p", "medium")
    assert "P2P/CUMEM between GPU0 and GPU1" in root.statement and "across sockets only (SYS)" in root.statement
    proof = dict(root.evidence)
    assert "0[0] -> 1[1] via P2P/CUMEM" in proof["NCCL, nccl.log:1"]
    assert any(what.startswith("topology, topo.log:") for what in proof)
    text = shown(diagnosis)
    assert "NCCL_P2P_DISABLE=1" in text and "traceops run --env NCCL_P2P_DISABLE=1" in text
    assert "Read the NCCL log" not in text and "TO-P001" not in text
    by_id = {verdict.rule: verdict for verdict in judge_diagnosis(diagnosis)}
    assert [found.severity for found in by_id["TO-P001"].findings] == ["warning"]


@pytest.mark.parametrize(
    ("nccl", "topo", "sequence", "cause"),
    [
        (P2P, ACROSS, 14863, "way_known"),  # what carried 14862 operations works
        (P2P, NVLINK, 3, "way_known"),
        (P2P.replace("P2P/CUMEM", "SHM/direct/direct"), ACROSS, 3, "way_known"),
        (P2P, "", 3, "way_known"),  # nothing tells how far the GPUs are apart
        ("", ACROSS, 3, None),
    ],
)
def test_other_ways_are_named_and_not_blamed(tmp_path, nccl, topo, sequence, cause):
    (root,) = told(tmp_path, nccl=nccl, topo=topo, train=timed_out(sequence)).roots
    assert (root.cause, root.confidence) == (cause, "low")
    assert "broken" not in root.statement
    assert any(what == "NCCL goes by" for what, _ in root.evidence) is (cause is not None)


def test_where_all_run_it_the_way_is_named_too():
    """Advice to read in NCCL's log which way it took is none where it was read (2 H200, loopback taken down)."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA / "faults" / "network_down.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        (root,) = diagnose(folder).roots
    assert (root.rule, root.ranks, root.cause, root.confidence) == ("TO-H006", (0, 1), "way_known", "high")
    assert dict(root.evidence)["NCCL goes by"] == "NET/Socket"
    assert "Read the NCCL log" not in root_advice(root)


def test_a_gloo_job_is_not_sent_to_nccls_log():
    """Two ranks on gloo whose loopback was taken down."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA / "faults" / "gloo_network_down.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        (root,) = diagnose(folder).roots
    assert (root.rule, root.ranks, root.cause) == ("TO-H006", (0, 1), "gloo")
    assert "TCP" in root_advice(root) and "NCCL_DEBUG" not in root_advice(root)


def test_p2p_of_other_ranks_explains_nothing(tmp_path):
    named = "".join(
        f"a:{10 + rank}:9 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {rank ^ 1}[{rank ^ 1}] via P2P/CUMEM\n"
        for rank in (2, 3)
    )
    (root,) = told(tmp_path, nccl=named, topo=ACROSS, train=timed_out()).roots
    assert root.cause is None


def test_p2p_across_sockets_without_a_hang_is_no_fault(tmp_path):
    assert is_quiet(told(tmp_path, nccl=P2P, topo=ACROSS))


def test_shared_memory_is_not_blamed_for_p2p(tmp_path):
    """TO-P001 is a warning beside a hang only where NCCL takes P2P, or nothing tells what it takes."""
    shm = P2P.replace("P2P/CUMEM", "SHM/direct/direct")
    for nccl, severity in ((shm, "info"), (P2P, "warning"), ("", "warning")):
        diagnosis = told(tmp_path, nccl=nccl, topo=ACROSS, train=timed_out())
        by_id = {verdict.rule: verdict for verdict in judge_diagnosis(diagnosis)}
        assert [found.severity for found in by_id["TO-P001"].findings] == [severity]


def test_nccl_warnings_alone_are_no_hang_and_are_told(tmp_path):
    diagnosis = told(tmp_path, nccl="20:13:32 - NCCL WARN NET/OFI Only EFA provider is supported\n")
    text = shown(diagnosis)
    assert "Nobody is seen" not in text and "No rank hangs or fails" in text
    assert "TO-P003" in text and "NCCL_DEBUG=INFO" in text and "nccl.log:1" in text
