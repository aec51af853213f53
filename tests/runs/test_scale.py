"""How a training scales: efficiency, where the rest goes, cost, and predictions scored on what others published."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from run_folders import DATA, failed_run, run_of
from started import environment

from traceops.across.links import link_by_name
from traceops.across.replay.what_if import larger_transfers, predicted_share
from traceops.cli import main
from traceops.cli.scale import price_of
from traceops.core.errors import InputError, UsageError
from traceops.pipeline.analyze import find_traces, run_pipeline
from traceops.pipeline.run_info import samples_per_step
from traceops.report.model import ReportDocument
from traceops.report.rows import RankRow, RoleRow, Run
from traceops.report.step_times import Ledger, StepTime
from traceops.report.summary import Summary
from traceops.runs.scale import (
    OPEN_LINE,
    STEP_LINE,
    MeasuredRun,
    interval,
    lost_parts,
    scale_document,
    step_from_one,
    table_document,
    trend_rate,
)
from traceops.runs.scale_table import read_table
from traceops.schemas import schema_path

TABLES = json.loads((DATA / "scaling" / "public.json").read_text())["tables"]


def capture(ranks: int, step: float, samples: float, replay: Any = None, **told: Any) -> MeasuredRun:
    """A run whose ranks compute for what is left of the step by 10 ms of exposed transfer a further rank."""
    comm = 10.0 * (ranks - 1)
    config = {"model": "gpt", "layers": 2, **told.pop("config", {})}
    report = ReportDocument(
        run=Run(world_size=ranks, samples_per_step=samples, training={"config": config}, device="GPU", **told),
        summary=Summary(
            step_time_ms=StepTime(typical=step), unprofiled_step_time_ms=step, samples_per_s=1e3 * samples / step
        ),
        ranks=tuple(
            RankRow(rank=r, compute_ms=step - comm, comm_transfer_ms=0.75 * comm, comm_wait_ms=0.25 * comm,
                    comm_unmatched_ms=0.0, memory_ms=0.0, idle_input_ms=0.0, idle_sync_ms=0.0, idle_host_ms=0.0,
                    idle_dependency_ms=0.0, idle_gap_ms=0.0)
            for r in range(ranks)
        ),
        roles=(
            RoleRow(role="data", told_by=("nothing",), ranks=ranks, groups=1, transfer_ms=6.0, wait_ms=1.0),
            RoleRow(role="tensor", told_by=("nothing",), ranks=ranks, groups=1, transfer_ms=2.0, wait_ms=0.0),
        ) if ranks > 1 else (),
        steps=(), collectives=(), findings=(),
    )  # fmt: skip
    return MeasuredRun(f"n{ranks}", f"profile/n{ranks}", report, replay)


def test_weak_scaling_in_numbers() -> None:
    found = scale_document([capture(4, 130.0, 32), capture(1, 100.0, 8), capture(2, 110.0, 16)], "x", 2.0)
    assert found.scaling == "weak" and [row.ranks for row in found.sizes] == [1, 2, 4]
    last = found.sizes[-1]
    assert last.speedup == pytest.approx(4 * 100 / 130, abs=1e-3)
    assert last.efficiency_pct == pytest.approx(100 * 100 / 130, abs=0.01)
    assert last.lost_ms == pytest.approx(30.0)
    assert sum(part.ms for part in last.lost) == pytest.approx(last.lost_ms)
    assert sum(part.pct for part in last.lost if part.pct) == pytest.approx(100.0)
    lost = {(part.bucket, part.role): part.ms for part in last.lost}
    assert lost["comm_transfer", "data"] == pytest.approx(22.5 * 0.75)
    assert lost["comm_transfer", "tensor"] == pytest.approx(22.5 * 0.25)
    assert lost["comm_wait", "data"] == pytest.approx(7.5) and ("compute", None) not in lost
    rate = 32 / 0.13
    assert last.rank_hours_per_million == pytest.approx(4 / rate * 1e6 / 3600, rel=1e-6)
    assert last.cost_per_million == pytest.approx(2 * last.rank_hours_per_million, rel=1e-6)
    assert (found.best_value, found.fastest) == (1, 4)


def test_strong_scaling_is_told_from_the_batch_and_loses_against_its_share() -> None:
    found = scale_document([capture(1, 100.0, 8), capture(2, 65.0, 8)], "x")
    assert found.scaling == "strong"
    assert found.sizes[1].efficiency_pct == pytest.approx(100 * 100 / 65 / 2, abs=0.01)
    assert found.sizes[1].lost_ms == pytest.approx(15.0)  # 65 against 50
    lost = {part.bucket: part.ms for part in found.sizes[1].lost if part.bucket == "compute"}
    assert lost["compute"] == pytest.approx(5.0)
    mixed = scale_document([capture(1, 100.0, 8), capture(2, 100.0, 12)], "x")
    assert mixed.scaling == "mixed" and "8 with 1, 12 with 2" in " ".join(mixed.notes)


def test_what_is_hardly_lost_is_not_divided_into_percent() -> None:
    found = lost_parts([capture(2, 110.2, 16)], [capture(2, 110.0, 16)])
    assert found is not None and all(part.pct is None for part in found[1])


def test_the_interval_is_over_captures() -> None:
    assert interval([100.0], [50.0, 51.0], 2) is None
    low, high = interval([95.0, 96.0, 97.0], [50.0, 50.5, 49.5], 2) or (0, 0)
    assert low < 0.96 < high and high - low < 0.06
    runs = [capture(n, step, 8 * n) for n, steps in ((1, (100, 101)), (2, (110, 111))) for step in steps]
    row = scale_document(runs, "x").sizes[1]
    assert row.captures == 2 and row.low_pct is not None and row.low_pct < row.efficiency_pct < (row.high_pct or 0)


def test_captures_that_differ_and_more_than_all_are_said() -> None:
    runs = [capture(1, 400.0, 8), capture(1, 100.0, 8), capture(2, 110.0, 16)]
    notes = " ".join(scale_document(runs, "x").notes)
    assert "Captures of size 1 differ by 300 %" in notes and "More than 100 %" in notes and "no interval" in notes


def test_predictions_say_how_far_they_are_off_where_that_is_known() -> None:
    def replay(times: float, work: float) -> float:
        return 1.05 * work

    runs = [capture(1, 100.0, 8), capture(2, 110.0, 16, replay), capture(4, 121.0, 32, replay)]
    found = scale_document(runs, "x").predictions
    by = {(row.ranks, row.by): row for row in found}
    assert set(by) == {(4, "replay"), (4, "trend"), (8, "replay"), (8, "trend")}
    assert by[4, "replay"].error_pct == pytest.approx(100 * (121 / 115.5 - 1), abs=0.01)
    assert by[4, "trend"].error_pct == pytest.approx(0.0, abs=0.01)  # a tenth more a doubling, both times
    assert by[8, "replay"].error_pct is None and by[8, "replay"].from_ranks == (4,)
    assert by[8, "trend"].samples_per_s == pytest.approx(64 / 0.1331, rel=1e-3)


def ddp(step: float, compute: float, **told: Any) -> ReportDocument:
    """One H200 with a gigabyte of gradients in ten buckets."""
    training = {"strategy": "pytorch_ddp", "parameters": 250_000_000,
                "config": {"precision": "bf16", "bucket_mb": 1e9 / 10 / 2**20}, **told}  # fmt: skip
    return ReportDocument(
        run=Run(world_size=1, samples_per_step=8, training=training, device="NVIDIA H200"),
        summary=Summary(step_time_ms=StepTime(typical=step), unprofiled_step_time_ms=step,
                        samples_per_s=8e3 / step, ledger_ms=Ledger(compute=compute)),
        ranks=(RankRow(rank=0, compute_ms=compute),), steps=(), collectives=(), findings=(),
    )  # fmt: skip


def test_the_step_on_two_gpus_from_that_on_one() -> None:
    link = link_by_name("NVIDIA H200", 2)
    assert link is not None
    bucket = 0.03 + 0.1 / link.busbw_gbs * 1e3  # ms: two ranks send what there is once
    assert step_from_one(ddp(100.0, 99.0), 2, 1.0) == pytest.approx(100.0 + bucket), "the last bucket follows backward"
    assert step_from_one(ddp(100.0, 99.0), 2, 0.5) == pytest.approx(100.0 - 49.5 + bucket)
    slow = (
        10 * bucket + 0.06 - 0.6
    )  # more to send than there is backward to hide it: but for the first bucket's compute
    assert step_from_one(ddp(1.0, 0.9), 2, 1.0) == pytest.approx(1.0 + slow)
    assert step_from_one(ddp(100.0, 50.0), 2, 0.5) == pytest.approx(100.0 + bucket), (
        "who waits for the host gains nothing"
    )
    assert step_from_one(ddp(100.0, 99.0), 2, 0.5, 39.0) == pytest.approx(70.0 + bucket), "the optimizer stays"
    assert step_from_one(ddp(100.0, 99.0), 16, 1.0) is None, "other hosts, other links"
    assert step_from_one(ddp(100.0, 99.0, strategy="zero3"), 2, 1.0) is None
    assert step_from_one(ddp(100.0, 99.0, parameters=None), 2, 1.0) is None


def test_one_gpu_predicts_two_and_the_measured_size_scores_it() -> None:
    two = capture(2, 110.0, 16, config={"precision": "bf16", "bucket_mb": 1e9 / 10 / 2**20})
    run = msgspec.structs.replace(two.report.run, training=ddp(1.0, 1.0).run.training, device="NVIDIA H200")
    pair = [MeasuredRun("n1", "profile/n1", ddp(100.0, 99.0)),
            MeasuredRun("n2", "profile/n2", msgspec.structs.replace(two.report, run=run))]  # fmt: skip
    row = scale_document(pair, "x").predictions[0]
    assert (row.ranks, row.by, row.from_ranks) == (2, "gradients", (1,))
    assert row.error_pct == pytest.approx(
        100 * (110.0 / (100.0 + 0.03 + 0.1 / link_by_name("NVIDIA H200").busbw_gbs * 1e3) - 1), abs=0.01
    )


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([capture(1, 100.0, 8), capture(1, 101.0, 8)], "different numbers of ranks"),
        ([capture(1, 100.0, 8), capture(2, 101.0, 8, config={"layers": 3})], "layers is 2 in profile/n1, and 3 in"),
        ([capture(1, 100.0, 8), capture(2, 101.0, 0)], "--global-batch-size"),
        ([capture(1, 100.0, 8, command=("a.py",)), capture(2, 1.0, 8, command=("b.py",))], "a.py in profile/n1"),
    ],
)
def test_what_is_no_scaling_is_refused(runs: list[MeasuredRun], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        scale_document(runs, "x")


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf", "", "1,5"])
def test_a_price_that_is_no_number(text: str) -> None:
    with pytest.raises(UsageError, match="--price"):
        price_of(text)


def test_the_price_of_an_instance_is_that_of_its_gpus() -> None:
    assert price_of("p4d.24xlarge") == price_of("ml.p4d.24xlarge") == pytest.approx(21.95764 / 8)
    with pytest.raises(UsageError, match="not known here"):
        price_of("a3-highgpu-8g")


def test_the_trend_on_tables_of_others() -> None:
    """docs/runs.md has these figures: the largest size predicted from the smaller ones."""
    errors = {}
    for table in TABLES:
        sizes = list(zip(table["devices"], table["rates"], strict=True))
        for known in range(2, len(sizes)):
            ranks, rate = sizes[known]
            errors[table["name"], ranks] = 100 * (trend_rate(sizes[:known], ranks) / rate - 1)
    assert len(errors) == 30
    far = {name for name, error in errors.items() if abs(error) > 10}
    assert far == {("DLPerf BERT base b32, MXNet", 16), ("DLPerf BERT base b32, TensorFlow 1", 16)}
    assert statistics.median(map(abs, errors.values())) == pytest.approx(2.65, abs=0.01)


def test_torchtitans_128_gpus_follow_from_the_loss_of_another_row() -> None:
    rows = [table for table in TABLES if table["name"].startswith("torchtitan")]
    for row in rows:
        assert row["rates"][0] / 8 > row["rates"][1] / 128
        each = [rate / n for rate, n in zip(row["rates"], row["devices"], strict=True)]
        assert 100 * each[1] / each[0] == pytest.approx(97.7, abs=0.6)


def test_a_larger_ring_costs_hops_and_bytes() -> None:
    found = find_traces(str(DATA / "ddp4"))
    run = run_pipeline(found, found.windows[-1]).run
    assert run.replay is not None
    transfer = larger_transfers(run.matching.collectives, run.replay.graph.kind, run.replay.graph.transfer, 4, 2)
    same = larger_transfers(run.matching.collectives, run.replay.graph.kind, run.replay.graph.transfer, 4, 1)
    assert (same == run.replay.graph.transfer).all()
    grown = transfer / run.replay.graph.transfer
    assert grown.max() == pytest.approx(7 / 3, rel=1e-3)  # the smallest: hops of a ring of 8 over those of one of 4
    assert grown.min() > (7 / 8) / (3 / 4)  # the largest: nearly the bytes on the bus
    weak = predicted_share(run.replay.graph, run.matching.collectives, 4, 2, 1.0)
    strong = predicted_share(run.replay.graph, run.matching.collectives, 4, 2, 0.5)
    assert 1.0 <= weak < 2.0 and strong < weak
    assert predicted_share(run.replay.graph, run.matching.collectives, 4, 1, 1.0) == pytest.approx(1.0, abs=0.02)


def test_the_command_reads_runs_and_writes_all_four_files(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"config": {"model": "gpt"}}
    run_of(tmp_path / "profile" / "n2", training={**told, "samples_per_step": 16}, unprofiled_step_ms=90.0)
    run_of(tmp_path / "profile" / "n4", "ddp4", training={**told, "samples_per_step": 32}, world_size=4,
           unprofiled_step_ms=95.0)  # fmt: skip
    failed_run(tmp_path / "profile" / "n8")
    assert main(["scale", "profile/n2", "profile/n4"]) == 2
    assert "different kinds of device" in capsys.readouterr().err
    monkeypatch.setattr("traceops.runs.scale._device", lambda capture: "GPU")
    assert main(["scale", "profile", "--price", "2.5"]) == 0
    said = capsys.readouterr()
    assert (
        "n8 is left out: " in said.err
        and "Weak scaling" in said.out
        and "Scaling: reports/scale/scale.html" in said.out
    )
    document = json.loads(Path("reports/scale/scale.json").read_text())
    jsonschema.Draft202012Validator(json.loads(schema_path("scale").read_text())).validate(document)
    assert sum(part["pct"] for part in document["sizes"][1]["lost"]) == pytest.approx(100.0, abs=1e-6)
    page = Path("reports/scale/scale.html").read_text()
    names = re.findall(r'role="region" aria-label="([^"]*)"', page)
    assert all(names) and len(set(names)) == len(names), "tables are told apart by those who hear them"
    assert {path.name for path in Path("reports/scale").iterdir()} == {
        "scale.html",
        "scale.json",
        "scale.csv",
        "scale.md",
    }


FORMS = {
    "csv": "gpus,images/s\n1,400\n2,780\n4,1500\n8,1900\n",
    "markdown": "| GPUs | Images/s |\n|---|--:|\n| 1 | 400 |\n| 2 | 780 |\n| 4 | 1,500 |\n| 8 | 1,900 img/s |\n",
    "blanks": "# ours, 2026\nnproc  throughput\n1      400\n2      780\n4      1500\n8      1900\nsee the blog\n",
    "semicolons": "num_gpus;tokens/sec;note\n1;400;a\n2;780;b\n4;1500;c\n8;1900;d\n",
    "tabs": "ranks\tsamples per second\n1\t400\n2\t780\n4\t1500\n8\t1900\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_scales_like_runs(form: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.txt").write_text(FORMS[form])
    assert main(["scale", "measured.txt", "--price", "2.50", "--samples", "5.4e9"]) == 0
    capsys.readouterr()
    document = json.loads(Path("reports/measured/scale.json").read_text())
    jsonschema.Draft202012Validator(json.loads(schema_path("scale").read_text())).validate(document)
    sizes = document["sizes"]
    assert [(row["ranks"], row["samples_per_s"], row["gain"]) for row in sizes] == [
        (1, 400, None), (2, 780, "good"), (4, 1500, "good"), (8, 1900, "poor"),
    ]  # fmt: skip
    assert (document["scaling"], document["fastest"], document["best_value"]) == ("unknown", 8, 1)
    assert (sizes[0]["training_hours"], sizes[0]["training_cost"]) == (3750, 9375)
    assert [(row["ranks"], row["by"]) for row in document["predictions"]] == [(4, "trend"), (8, "trend"), (16, "trend")]


def test_a_table_of_step_times_needs_the_batch() -> None:
    rows = read_table("gpus,step time (ms),batch size\n1,200,32\n8,250,32\n", "t.csv")
    assert [(row.ranks, row.rate, row.samples) for row in rows] == [(1, 160, 32), (8, 1024, 256)]
    rows = read_table("gpus,iter time (s),global batch size\n1,2.0,64\n8,0.5,64\n", "t.csv")
    assert [(row.ranks, row.rate) for row in rows] == [(1, 32), (8, 128)]
    document = table_document(rows, "t")
    assert (document.scaling, document.sizes[1].step_ms) == ("strong", 500)
    with pytest.raises(InputError, match=r"has no throughput: .* or give step ms and batch size"):
        read_table("gpus,step ms\n1,200\n8,250\n", "t.csv")
    with pytest.raises(InputError, match="has no column of ranks"):
        read_table("a,b\n1,2\n", "t.csv")
    with pytest.raises(InputError, match="1 rows with numbers"):
        read_table("gpus,images/s\n1,400\nmany,out of memory\n", "t.csv")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["scale"], 2, "name runs"),
        (["scale", "empty"], 3, "holds no traces"),
        (["scale", "x", "--price", "abc"], 2, "--price abc"),
        (["scale", "--nproc", "1,x"], 2, "--nproc 1,x"),
        (["scale", "--nproc", "2"], 2, "two numbers of ranks"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, monkeypatch: Any, capsys: Any, words: Any, code: int, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(words) == code
    assert said in capsys.readouterr().err


@pytest.mark.torch
def test_sizes_are_trained_in_turn_with_the_same_threads_and_what_failed_is_tried_again(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)
    trained: list[str] = []

    def train(decided: Any) -> int:
        plan = decided.plan
        trained.append(plan.out.name)
        assert plan.extra_env == {"OMP_NUM_THREADS": "1"}
        shutil.rmtree(plan.out, ignore_errors=True)
        if len(trained) == 2:
            failed_run(plan.out)
            return 1
        ranks = plan.cluster.nproc
        run_of(plan.out, "ddp4" if ranks == 4 else "straggler_gloo2", status="finished", world_size=ranks,
               training={"samples_per_step": 8 * ranks}, unprofiled_step_ms=80.0 + len(trained))  # fmt: skip
        return 0

    monkeypatch.setattr("traceops.cli.sweep._train", train)
    monkeypatch.setattr("traceops.runs.scale._device", lambda capture: "GPU")
    command = ["scale", "--nproc", "2,4", "--repeat", "2", "--quick"]
    assert main([*command, "--dry-run"]) == 0 and trained == []
    assert main(command) == 2  # nothing is left to compare with
    assert "nproc=4_1 is left out" in capsys.readouterr().err
    assert main(command) == 0
    assert trained == ["nproc=2_1", "nproc=4_1", "nproc=2_2", "nproc=4_1", "nproc=4_2"]
    sizes = json.loads(Path("reports/scale/scale.json").read_text())["sizes"]
    assert [(row["ranks"], row["captures"]) for row in sizes] == [(2, 2), (4, 2)] and sizes[1]["low_pct"]


@pytest.mark.torch
def test_the_first_training_that_does_not_tell_its_samples_is_the_last(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)
    Path("train.py").touch()
    trained: list[str] = []

    def train(decided: Any) -> int:
        trained.append(decided.plan.out.name)
        run_of(decided.plan.out, "straggler_gloo2", status="finished", world_size=2, unprofiled_step_ms=80.0)
        return 0

    monkeypatch.setattr("traceops.cli.sweep._train", train)
    assert main(["scale", "--nproc", "2,4", "--", "train.py"]) == 2
    assert trained == ["nproc=2_1"]
    told = capsys.readouterr().err
    assert "nproc=2_1 does not say how many samples one step has" in told and "--global-batch-size N" in told
    assert f"`{OPEN_LINE}`" in told and f"`{STEP_LINE}`" in told


@pytest.mark.torch
@pytest.mark.slow
def test_the_lines_that_it_names_tell_the_samples(tmp_path: Path) -> None:
    """As they stand, in a script under traceops run."""
    lines = [
        "import torch, traceops",
        "model = torch.nn.Linear(4, 4)",
        "optimizer = torch.optim.SGD(model.parameters())",
        OPEN_LINE,
        "    for batch in [torch.ones(6, 4)] * 12:",
        "        model(batch).sum().backward()",
        "        optimizer.step()",
        f"        {STEP_LINE}",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    run = [sys.executable, "-m", "traceops", "run", "--nproc", "1", "--out", "run", "--", "train.py"]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert samples_per_step(manifest) == 6.0
