"""The stuck collective has a name: its bucket's parameters as the ranks told, or a shape that its size suggests."""

import json
import pickle
from pathlib import Path

import pytest

from traceops.hangs.diagnose import diagnose
from traceops.report.hang_text import root_sentence

LIKELY = "14,845,952 elements are likely 28996×512, the embedding or head of a vocabulary of 28,996 (bert-base-cased)"


def dump(path: Path, rank: int, calls: int, elements: int, *, name: str = "all_reduce", own: bool = False) -> None:
    file = "/site-packages/torch/distributed/distributed_c10d.py" if own else "/home/me/train.py"
    frames = [{"name": "all_reduce" if own else "step", "filename": file, "line": 7}]
    entries = [
        {
            "frames": frames, "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": i + 1, "p2p_seq_id": 0, "op_id": i + 1,
            "profiling_name": f"nccl:{name}", "time_created_ns": 10**18 + i,
            "input_sizes": [[elements]], "input_dtypes": ["Float"], "output_sizes": [[elements]],
            "output_dtypes": ["Float"], "is_p2p": False, "timeout_ms": 600000, "retired": i < 2,
            "state": "completed" if i < 2 else "started", "time_discovered_started_ns": 10**18 + i,
            "time_discovered_completed_ns": None,
        }
        for i in range(calls)
    ]  # fmt: skip
    document = {
        "version": "2.10", "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": calls, "last_completed_collective": 2}},
    }  # fmt: skip
    (path / f"dump_rank_{rank}").write_bytes(pickle.dumps(document))


def told(folder: Path, elements: int, *rows: dict[str, object], **options: bool) -> str:
    dump(folder, 0, 3, elements, **options)
    dump(folder, 1, 2, elements, **options)
    if rows:
        (folder / "parameters_0.json").write_text(json.dumps({"rank": 0, "collectives": list(rows)}))
    (root,) = diagnose(folder, jobs=1).roots
    assert (root.rule, root.ranks) == ("TO-H001", (1,))
    return root_sentence(root)


def model(*sizes: int, cap: int = 16_000, **more: object) -> dict[str, object]:
    """Under DDP, of parameters w0, w1, … of so many elements of four bytes."""
    parameters = [(f"w{number}", size, 4 * size) for number, size in enumerate(sizes)]
    return {"strategy": "ddp", "group": "0", "cap_bytes": cap, "parameters": parameters, **more}


def test_a_bucket_is_named_by_its_parameters(tmp_path: Path) -> None:
    said = told(tmp_path, 5000, model(90_000, 4000, 600, 300, 100, 8000))
    assert said.endswith(". The all_reduce has the gradients of w1 and 3 more.")


def test_buckets_of_one_size_are_not_told_apart(tmp_path: Path) -> None:
    assert "the gradients of w0, or of one of 2 other buckets of the same size." in told(
        tmp_path, 5000, model(5000, 5000, 5000, cap=20_000)
    )


@pytest.mark.parametrize(
    "row",
    [
        model(9000, 5000, 9000, group="7"),
        model(9000, 5001, 9000),
        model(9000, 3000, 2000, 9000, cap=40_000),  # a bucket that is not full, and not the model's first parameters
        model(9000, 1000, 4000, 9000, cap=15_000),  # one that had been full before
        {"strategy": "fsdp", "group": "0", "elements": 9000, "shard": 4500, "names": ["w"], "count": 1},
    ],
)
def test_another_group_size_or_kind_is_no_name(tmp_path: Path, row: dict[str, object]) -> None:
    assert "gradients" not in told(tmp_path, 5000, row)


def test_a_collective_that_the_program_called_is_not_ddps(tmp_path: Path) -> None:
    assert "gradients" not in told(tmp_path, 5000, model(5000), own=True)


def test_a_shard_that_is_gathered_has_parameters(tmp_path: Path) -> None:
    row = {"strategy": "fsdp", "group": "0", "elements": 10_000, "shard": 5000, "names": ["attn.wq.weight"], "count": 1}
    said = told(tmp_path, 5000, row, name="_all_gather_base")
    assert said.endswith("The _all_gather_base has the parameters of attn.wq.weight.")


def test_from_a_log_alone_a_likely_shape_is_offered_as_such(tmp_path: Path) -> None:
    line = (
        "[rank0]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=64, OpType=ALLREDUCE, NumelIn={0}, NumelOut={0}, Timeout(ms)=600000) ran for 600029 "
        'milliseconds before timing out.\n[rank1]: Traceback (most recent call last):\n[rank1]:   File "/me/train.py", '
        "line 3, in f\n[rank1]: ValueError: bad\n"
    )
    for elements, likely in ((14_845_952, True), (14_845_953, False), (28996 * 500, False)):
        (tmp_path / "train.log").write_text(line.format(elements))
        found = diagnose(tmp_path)
        said = " ".join(root_sentence(root) for root in found.roots)
        assert (LIKELY in said) == likely, said


@pytest.mark.parametrize("text", ['{"rank": 0}', '{"rank": 0, "collectives": [1, {"elements": 5}, {"names": ["a"]}]}'])
def test_a_file_that_tells_nothing_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "parameters_0.json").write_text(text)
    assert "gradients" not in told(tmp_path, 5000)
