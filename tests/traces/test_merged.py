"""Files into which a tool merged the traces of several ranks are not read as one."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from events_builder import build, call, kernel, note

from traceops.core.errors import InputError
from traceops.core.files import read_regular
from traceops.pipeline.analyze import analyze
from traceops.traces.kineto import _is_merged

RUN = Path(__file__).parents[1] / "data" / "pipeline4"


def offset(event, rank):
    event["pid"] = event["pid"] + rank * 10**8 if isinstance(event.get("pid"), int) else event.get("pid")


def labelled(event, rank):
    event["pid"] = f"[TP{rank:02d}] {event.get('pid')}"


def one_pid(event, rank):
    event["pid"] = rank + 1


def merge(path, change, keep=lambda event: True):
    """One file of the run's ranks, with the header of the first."""
    merged = {"traceEvents": []}
    for rank in range(4):
        one = json.loads(gzip.decompress(read_regular(RUN / f"rank_{rank}.pt.trace.json.gz", 1 << 26)))
        for event in filter(keep, one["traceEvents"]):
            change(event, rank)
            merged["traceEvents"].append(event)
        merged |= {key: value for key, value in one.items() if key not in merged}
    path.write_text(json.dumps(merged))
    return path


@pytest.mark.parametrize(
    ("change", "keep"),
    [
        (lambda event, rank: None, lambda event: True),
        (offset, lambda event: True),
        (labelled, lambda event: True),
        (one_pid, lambda event: True),
        (offset, lambda event: event.get("cat") == "kernel"),
        (offset, lambda event: event.get("cat") in ("kernel", "cuda_runtime", "user_annotation")),
    ],
)
def test_several_ranks_in_a_file_are_not_judged_as_one(change, keep, tmp_path):
    with pytest.raises(InputError, match="merged several traces into it: give each rank's own"):
        analyze(merge(tmp_path / "merged.json", change, keep))


@pytest.mark.parametrize("change", [offset, labelled])
def test_beside_the_ranks_own_traces_a_merged_file_changes_nothing(change, tmp_path):
    folder = Path(shutil.copytree(RUN, tmp_path / "run"))
    merge(folder / "merged-1.trace.json", change)
    report = analyze(folder)
    assert (len(report.ranks), report.steps) == (4, analyze(RUN).steps)
    assert [one.message for one in report.findings if one.rule == "TO-V002"] != []


def process(pid, device=None, comm=False):
    ops = [note(f"aten::op{n}", 100 * n, 50, cat="cpu_op") for n in range(9)]
    ops += [{**ops[0], "name": "record_param_comms", "comm": "allreduce"}] if comm else []
    used = [] if device is None else kernel(300, 200, launched=200)
    return [{**row, "pid": device if row["cat"] == "kernel" else pid} for row in ops + used]


TRAINER = process(10, device=0, comm=True)


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        (TRAINER, False),
        (TRAINER + process(11), False),  # a DataLoader's worker
        (TRAINER + process(11, device=0), False),  # a child that computes on the GPU by itself
        (TRAINER + [{**row, "pid": 1} for row in kernel(400, 100)], False),  # another GPU of the process
        ([*TRAINER, {**call("cudaMalloc", 0, 5), "pid": 4711}], False),  # CUPTI has the pid outside of a container
        (TRAINER + process(-1)[:2] + process(12, device=1, comm=True)[:1], False),  # damaged pids
        (TRAINER + process(11) + process(12, device=1, comm=True), True),
        (process(10, device=0) + process(11, device=0), True),
        (process(10, comm=True) + process(11, comm=True), True),
    ],
)
def test_only_processes_that_train_are_ranks(rows, merged):
    assert _is_merged(build(rows)) is merged
