"""Changes that save memory: of a training's options, by arithmetic on a peak, and the GPUs that they are judged by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from changed import replace

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.memory.changes import Peak, blocks_of, changes_of, fewest, peak_of, words_of
from traceops.memory.estimate import (
    EstimateRequest,
    Worker,
    from_formula,
    made_of,
    proposals,
    rank_of,
    together,
    worker,
)
from traceops.memory.gpus import hardware_of, workspaces_of
from traceops.memory.model import MemoryChange, MemoryEstimate
from traceops.traces.ran_out import RanOut
from traceops.train.config import TrainConfig

GIB = 1 << 30
SMALL = TrainConfig(layers=2, dim=64, heads=2, vocab=512, seq_len=64, batch_size=4, precision="bf16", device="cuda")


@pytest.fixture(scope="module")
def helper() -> Iterator[Worker]:
    with worker() as one:
        yield one


@pytest.mark.parametrize(
    ("said", "name", "count"),
    [
        ("NVIDIA H200", "H200", None), ("h200", "H200", None), ("GH200", "GH200", None),
        ("NVIDIA A100-SXM4-80GB", "A100-80", None), ("a100-40gb", "A100-40", None),
        ("Tesla V100-PCIE-16GB", "V100-16", None),
        ("NVIDIA GeForce RTX 4090", "RTX4090", None), ("rtx3090", "RTX3090", None), ("A10G", "A10G", None),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada", None), ("AMD Instinct MI300X", "MI300X", None),
        ("p4d.24xlarge", "A100-40", 8), ("ml.p3.8xlarge", "V100-16", 4), ("a3-highgpu-8g", "H100", 8),
        ("Standard_ND96isr_H100_v5", "H100", 8), ("24GB", None, None),
    ],
)  # fmt: skip
def test_gpus_by_name(said: str, name: str | None, count: int | None) -> None:
    found = hardware_of(said)
    assert (found.gpu, found.count) == (name, count)
    assert 8e9 < found.capacity < 320e9


def test_a_gpu_that_is_not_known_or_of_two_sizes() -> None:
    assert hardware_of("24GB").capacity == 24 * 10**9
    with pytest.raises(UsageError, match="A100-80, A100-40"):
        hardware_of("NVIDIA A100")
    with pytest.raises(UsageError, match=r"not known.*--gpu 24GB"):
        hardware_of("Voodoo 2")
    assert workspaces_of("A6000")["cublas"] < workspaces_of("H100")["cublas"] == workspaces_of(None)["cublas"]


def test_every_instance_has_a_known_gpu() -> None:
    for instance in json.loads(files("traceops.memory").joinpath("gpus.json").read_bytes())["instances"]:
        assert hardware_of(instance).count


def test_an_instance_says_how_many_ranks_there_are(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    assert main(["memory", "--params", "1e9", "--gpu", "p4d.24xlarge", "--json", str(out)]) == 0
    found = msgspec.json.decode(out.read_bytes(), type=MemoryEstimate)
    assert (found.world_size, found.capacity_bytes) == (8, hardware_of("A100-40").capacity)


def test_proposals_stand_alone_and_together() -> None:
    config = replace(SMALL, precision="fp32")
    found = {proposal.name: proposal for proposal in proposals(config, 4)}
    joined = [found["adam_8bit"], found["checkpoint"]]
    changed = made_of(config, joined)
    assert (changed.optimizer, changed.activation_checkpointing) == ("adamw8bit", True)
    assert words_of([one.name for one in joined])[0] == "8-bit Adam and checkpoint every block"
    assert together([found["zero1"], found["checkpoint"], found["shard"]]) == [found["checkpoint"], found["shard"]]
    assert not any("offload" in option for proposal in found.values() for option in proposal.options)


def test_a_formula_proposes_what_may_fit() -> None:
    found = from_formula(
        8e9, EstimateRequest(replace(SMALL, strategy="pytorch_ddp"), 8, hardware_of("A100-80").capacity)
    )
    assert found.verdict == "does_not_fit"
    verdicts = {" ".join(change.options): change.verdict for change in found.changes}
    assert verdicts["--strategy pytorch_zero1"] == "unknown"  # 64 GB of 85 are left for activations
    assert all(change.verdict != "fits" for change in found.changes)
    assert "half the micro-batch" not in str(found.changes)  # no activations are in a formula


def test_zero_2_keeps_its_parameters_gathered() -> None:
    config = replace(SMALL, strategy="pytorch_zero2", precision="bf16")
    held = {row.name: row.held_bytes for row in rank_of(1e9, config, 8).categories}
    assert held["sharding_buffers"] == 2_000_000_000 and held["parameters"] == 500_000_000


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_arithmetic_on_a_peak_promises_no_more_than_the_changed_training_saves(helper: Worker, precision: str) -> None:
    """What a script is told, on a training whose changed form can be estimated."""
    config = TrainConfig(
        strategy="pytorch_ddp", layers=8, dim=256, heads=8, vocab=4096, seq_len=256, batch_size=8, device="cuda",
        precision=precision,
    )  # fmt: skip
    asked = EstimateRequest(config, 4)
    before = helper.ask(config, asked)
    rank = before.ranks[0]
    held = {row.name: row.held_bytes for row in rank.categories}
    peak = Peak(held, rank.peak_allocated_bytes, 0, 4, before.parameters, blocks_of(rank.activations))
    found = {change.name: change.peak_allocated_bytes for change in changes_of(peak, None, 0.0)}
    known = {proposal.name: proposal for proposal in proposals(config, 4)}
    for name in ("bf16", "zero1", "half_batch", "shard", "checkpoint"):
        if name in known and words_of([name])[0] in found:
            true = max(one.peak_allocated_bytes for one in helper.ask(made_of(config, [known[name]]), asked).ranks)
            promised = found[words_of([name])[0]]
            assert 0.95 * true <= promised <= 1.6 * true, name
    assert {"zero1", "half_batch", "checkpoint"} <= {name for name in known if words_of([name])[0] in found}


def test_changes_together_where_none_is_enough() -> None:
    held = {"parameters": 4 * GIB, "gradients": 4 * GIB, "optimizer_state": 8 * GIB, "activations": 12 * GIB}
    peak = Peak(held, 28 * GIB, 1 * GIB, 8, GIB, (GIB,) * 10)
    found = changes_of(peak, 12 * GIB, 0.1)
    assert [change.verdict for change in found if " and " not in change.name].count("fits") == 0
    assert found[0].verdict == "fits" and " and " in found[0].name
    assert all(change.saves_bytes > 0 for change in found)
    assert [change.verdict for change in changes_of(peak, 24 * GIB, 0.1)].count("fits") > 1


@pytest.mark.parametrize("here", [True, False])
def test_what_is_not_installed_is_proposed_last(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceops.memory.estimate.find_spec", lambda name: object() if here else None)
    names = [proposal.name for proposal in proposals(replace(SMALL, precision="fp32"), 1)]
    assert names.index("adam_8bit") == (2 if here else len(names) - 1)


def test_the_fewest_changes_that_are_enough() -> None:
    saves = {"cheap": 1, "dearer": 1, "dear": 5, "dearest": 9}

    def enough(names: Sequence[str]) -> MemoryChange | None:
        saved = sum(saves[name] for name in names)
        return MemoryChange(",".join(names), [], 0, 0, saved, "", "fits") if saved >= 6 else None

    found = fewest(list(saves), enough)
    assert found is not None and found.name == "cheap,dear"
    assert fewest(["cheap", "dearer"], enough) is None


def test_the_first_update_that_runs_out_asks_for_state_and_not_for_a_smaller_batch() -> None:
    held = {"parameters": 4 * GIB, "gradients": 4 * GIB, "optimizer_state": GIB}
    ran_out = RanOut(
        0, 0, 0, asked=GIB // 4, total=12 * GIB, free=0, allocated=9 * GIB, reserved=10 * GIB, retries=1, held=held
    )
    peak = peak_of(ran_out, 8)
    assert peak is not None and peak.held["optimizer_state"] == 8 * GIB
    saves = {change.name: change.saves_bytes for change in changes_of(peak, None, 0.0)}
    assert saves.keys() == {words_of(["adam_8bit"])[0], words_of(["offload_state"])[0]}
    whole = changes_of(msgspec.structs.replace(peak, parameters=GIB), None, 0.0)
    assert {change.name: change.saves_bytes for change in whole}[words_of(["zero1"])[0]] == 7 * GIB
    assert peak_of(msgspec.structs.replace(ran_out, held={}), 8) is None


@pytest.mark.parametrize(("step", "gradients"), [(0, GIB // 64), (9, 4 * GIB)], ids=["LoRA", "8-bit Adam, later"])
def test_few_states_are_no_first_update(step: int, gradients: int) -> None:
    held = {"parameters": 4 * GIB, "gradients": gradients, "optimizer_state": GIB // 32}
    ran_out = RanOut(
        0, step, 0, asked=GIB, total=12 * GIB, free=0, allocated=11 * GIB, reserved=11 * GIB, retries=1, held=held
    )
    peak = peak_of(ran_out, 8)
    assert peak is not None and peak.held["optimizer_state"] == GIB // 32


def test_a_rank_that_may_hold_a_share_is_not_told_to_shard() -> None:
    held = {"parameters": 1.0 * GIB, "gradients": 1.0 * GIB, "optimizer_state": 2.0 * GIB, "activations": 4.0 * GIB}
    for parameters in (0, 2 * GIB):  # not known; 8 GiB of them, of which this is an eighth
        found = changes_of(Peak(held, 8 * GIB, 0, 8, parameters), None, 0.0)
        assert not {words_of([name])[0] for name in ("zero1", "shard", "bf16")} & {change.name for change in found}
