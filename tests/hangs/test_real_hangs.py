"""Real dumps and logs of jobs that hung, with a known cause."""

import pickle
import tarfile
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.pipeline.analyze import find_traces
from traceops.report.hang_text import hang_sentence, read_text

DATA = Path(__file__).parents[1] / "data" / "hangs"


@pytest.fixture
def job(tmp_path):
    """Unpacks one of the jobs in tests/data/hangs."""

    def unpack(name: str, into: str = "") -> Path:
        folder = tmp_path / (into or "job")
        with tarfile.open(DATA / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        return folder / name

    return unpack


def named(found):
    return [(root.rule, root.ranks, root.confidence) for root in found.roots]


def test_a_rank_that_never_calls_an_all_reduce(job):
    found = diagnose(job("hang_skip"))

    assert named(found) == [("TO-H001", (3,), "high")]
    (root,) = found.roots
    assert (root.op, root.sequence, root.group, root.bytes) == ("all_reduce", 64, "default_pg", 4 * 1048576)
    assert root.where == "step (worker.py:128)"
    assert root.waiting == (0, 1, 2)
    assert root.cause == "host"


def test_a_rank_that_calls_another_collective(job):
    found = diagnose(job("hang_mismatch"))

    assert named(found) == [("TO-H002", (3,), "high")]
    assert "rank 3 called _all_gather_base" in found.roots[0].message
    assert "ranks 0–2 called all_reduce" in found.roots[0].message


def test_under_fsdp(job):
    found = diagnose(job("hang_skip_fsdp2"))

    assert named(found) == [("TO-H001", (1,), "high")]


def test_a_rank_that_exits_with_the_log_alone(job):
    found = diagnose(job("hang_exit"))

    assert [(root.rule, root.ranks) for root in found.roots] == [("TO-H004", (3,))]
    assert "exit code 17" in found.roots[0].message


@pytest.mark.parametrize("name", ["hang_skip", "hang_mismatch", "hang_skip_fsdp2"])
def test_the_log_without_the_dumps_names_the_same_rank(job, name):
    folder = job(name)
    expected = named(diagnose(folder))
    for dump in folder.glob("fr_*"):
        dump.unlink()

    found = diagnose(folder)

    assert [(rule, ranks) for rule, ranks, _ in expected] == [(root.rule, root.ranks) for root in found.roots]
    assert found.roots[0].confidence == "medium"


def test_two_ranks_whose_gpus_fail_in_a_job_with_many_groups(job):
    found = diagnose(job("gpu_error_2nd"))

    assert named(found) == [("TO-H003", (9,), "high"), ("TO-H003", (14,), "high")]
    assert {rank for root in found.roots for rank in (*root.ranks, *root.waiting)} == set(range(16))


def test_two_ranks_whose_hosts_stand_still_in_a_job_with_many_groups(job):
    found = diagnose(job("lock_gil_1st"))

    assert named(found) == [("TO-H001", (9, 14), "high")]
    assert found.roots[0].group == "EXPERT_MODEL_PARALLEL_GROUP"
    assert len(found.roots[0].waiting) == 14


def test_without_the_dump_of_the_rank_to_blame_it_is_still_the_one_named(job):
    folder = job("hang_skip")
    (folder / "fr_3").unlink()
    (folder / "log.txt").unlink()

    found = diagnose(folder)

    assert named(found) == [("TO-H001", (3,), "low")]
    assert "Nothing in these files comes from rank 3" in found.roots[0].message
    assert any("Rank 3 left no record" in note for note in found.notes)


def test_dumps_of_another_job_in_the_same_folder_are_left_out(job):
    folder = job("lock_gil_1st")
    for dump in job("hang_skip", "other").glob("fr_*"):
        dump.rename(folder / f"nccl_trace_rank_{dump.name[-1]}")

    found = diagnose(folder)

    assert named(found) == [("TO-H001", (9, 14), "high")]
    assert sum("another job" in problem for _, problem in found.evidence.problems) == 4


def test_dumps_of_the_same_job_on_another_day_are_left_out(job):
    folder = job("hang_skip")
    for rank in range(3):
        document = pickle.loads((folder / f"fr_{rank}").read_bytes())
        for entry in document["entries"]:
            entry["time_created_ns"] -= 24 * 3600 * 10**9
        (folder / f"old_rank_{rank}").write_bytes(pickle.dumps(document, protocol=2))

    found = diagnose(folder)

    assert named(found) == [("TO-H001", (3,), "high")]
    assert {Path(path).name for path, _ in found.evidence.problems} == {f"old_rank_{rank}" for rank in range(3)}


def test_a_damaged_dump_hides_no_other(job):
    folder = job("hang_skip")
    whole = (folder / "fr_1").read_bytes()
    (folder / "fr_1").write_bytes(whole[: len(whole) // 2])
    (folder / "fr_2").write_bytes(b"\x80\x02cposix\nsystem\n(S'true'\ntR.")
    (folder / "fr_9x.bin").write_bytes(b"")

    found = diagnose(folder)

    assert (found.roots[0].rule, found.roots[0].ranks) == ("TO-H001", (3,))
    problems = {Path(path).name: problem for path, problem in found.evidence.problems}
    assert "cut off" in problems["fr_1"]
    assert "not opened" in problems["fr_2"]
    assert problems["fr_9x.bin"] == "it is empty"


@pytest.mark.parametrize(
    "name", ["_dump_{}", "nccl_trace_rank_{}", "rank{}.pickle", "fr_trace_{}.json", "rank_{}/dump"]
)
def test_file_names_of_every_usual_form(job, name):
    folder = job("hang_skip")
    (folder / "log.txt").unlink()
    for rank in range(4):
        target = folder / name.format(rank)
        target.parent.mkdir(exist_ok=True)
        (folder / f"fr_{rank}").rename(target)

    assert named(diagnose(folder)) == [("TO-H001", (3,), "high")]


def test_one_dump_alone(job):
    """Nobody brought the others: they are not to blame for that."""
    found = diagnose(job("hang_skip") / "fr_0")

    assert found.roots == () and found.waits == () and next(rank.state for rank in found.ranks) == "waiting"
    assert "Nothing in these files comes from ranks 1–3" in hang_sentence(found)


def test_nothing_to_read_is_an_error_that_says_what_is_needed(tmp_path):
    (tmp_path / "notes.txt").write_text("all is well\n")

    assert is_quiet(diagnose(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        diagnose(tmp_path / "nowhere")


def test_analyze_tells_of_diagnose_where_only_dumps_are(job, tmp_path):
    told = "evidence of a hang, though: traceops diagnose "
    with pytest.raises(InputError, match=told):
        find_traces(str(job("hang_skip")))
    with pytest.raises(InputError, match="holds no traces") as nothing:
        find_traces(str(tmp_path))
    assert told not in str(nothing.value)


def test_the_matrix_of_a_runs_host_is_of_the_machine_that_nccl_tells_of(tmp_path):
    """Two ranks on a host with four GPUs. Without the run's own word the matrix may be of another machine."""
    with tarfile.open(DATA.parent / "faults" / "hang_gpu.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / "hang_gpu"
    assert "; topology of 1 machine;" in read_text(diagnose(run))
    (run / "run.json").unlink()
    assert "; topology of 1 machine, and of 1 machine without a name;" in read_text(diagnose(run))
