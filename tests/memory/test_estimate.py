"""`traceops memory` against peaks measured on GPUs, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from changed import replace

from benchmarks.memory.estimates import DATA, MEASURED, errors, estimates
from benchmarks.memory.torchtitan import Peak, drawn_out
from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.memory.allocator import Allocation, Category, Event, TrainingPhase, summarize
from traceops.memory.estimate import EstimateRequest, Worker, error_of, estimate, from_formula, judge, proposals, worker
from traceops.memory.gpus import CONTEXT_BYTES, NCCL_BYTES, capacity_of, size_of, workspaces_of
from traceops.memory.model import MemoryChange, MemoryEstimate, RankMemory
from traceops.memory.worker import DryRunAnswer
from traceops.render.memory import describe_estimate
from traceops.report.write import json_bytes
from traceops.train.config import TrainConfig

GIB = 1 << 30
SMALL = TrainConfig(layers=2, dim=64, heads=2, vocab=512, seq_len=64, batch_size=4, precision="bf16", device="cuda")


@pytest.fixture(scope="module")
def helper() -> Iterator[Worker]:
    with worker() as one:
        yield one


@pytest.mark.torch
@pytest.mark.parametrize("name", ["small_item_sync", "small_healthy_ddp", "healthy_hsdp"])
def test_measured_peaks_are_met(name: str, helper: Worker) -> None:
    (run,) = [run for run in json.loads(MEASURED.read_text())["runs"] if run["name"] == name]
    for number, found in estimates(run, helper).items():
        ((_, allocated, reserved),) = [row for row in run["ranks"] if row[0] == number]
        share, reserved_share, _ = errors(found, allocated, reserved)
        assert abs(share) < 0.001
        assert abs(reserved_share) < 0.02


@pytest.mark.torch
def test_models_of_transformers_keep_what_a_gpu_keeps() -> None:
    """Dropout a byte an element, RMSNorm its input and a number a row; on the CPU they keep more."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from traceops.memory.dry_run import kernels_of_gpus

    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with kernels_of_gpus(), FakeTensorMode():
        x = torch.empty(64, 128, requires_grad=True)
        norm, drop = torch.nn.RMSNorm(128), torch.nn.Dropout(0.1)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            drop(x)
            assert sum(kept) == 64 * 128
            kept.clear()
            norm(x)
    assert sum(kept) == (64 * 128 + 128 + 64) * 4


def test_a_rank_is_drawn_out_from_two_of_fewer_layers() -> None:
    less, more = Peak(18.0, 21.5, 0, 1.0), Peak(25.0, 29.5, 0, 2.0)
    assert drawn_out(less, more, (2, 4), 15) == Peak(63.5, 73.5, 0, 3.0)


@pytest.mark.torch
def test_an_optimizer_goes_through_all_parameters_at_once(helper: Worker) -> None:
    """As on a GPU: AdamW makes a copy of them, which is the peak of a small batch with checkpointing."""
    (run,) = [run for run in json.loads((DATA / "h200.json").read_text())["runs"] if run["name"] == "one_ckpt"]
    found = estimates(run, helper)[0]
    ((_, allocated, reserved),) = run["ranks"]
    assert abs(found.peak_allocated_bytes / allocated - 1) < 0.001
    assert abs(found.peak_reserved_bytes / reserved - 1) < 0.02


@pytest.mark.torch
def test_what_does_not_fit_is_told_what_would_help(helper: Worker) -> None:
    fits = estimate(EstimateRequest(SMALL, 2, capacity=4 * GIB), helper)
    assert (fits.verdict, fits.changes) == ("fits", [])
    tight = estimate(EstimateRequest(SMALL, 2, capacity=fits.device_bytes - (16 << 20)), helper)
    assert tight.verdict in ("does_not_fit", "too_close")
    saved = {change.name: change.saves_bytes for change in tight.changes}
    assert all(size > 0 for size in saved.values())
    assert "half the micro-batch, twice the accumulation" in saved
    assert tight.spare_bytes == -(16 << 20)


@pytest.mark.torch
def test_options_change_what_they_should(helper: Worker) -> None:
    def held(**options: object) -> dict[str, int]:
        answer = helper.ask(replace(SMALL, **options), EstimateRequest(SMALL, 2))  # type: ignore[arg-type]
        assert not answer.problem
        return {row.name: row.held_bytes for row in answer.ranks[0].categories}

    plain = held(strategy="pytorch_zero3")
    assert held(strategy="pytorch_zero3", precision="bf16-params")["parameters"] < 0.7 * plain["parameters"]
    eight = held(strategy="pytorch_zero3", optimizer="adamw8bit")
    assert eight["optimizer_state"] < 0.5 * plain["optimizer_state"]
    assert not {"parameters", "optimizer_state"} & held(strategy="pytorch_zero3", offload="cpu").keys()
    checkpointed = held(strategy="pytorch_zero3", activation_checkpointing=True)
    assert checkpointed.get("activations", 0) < plain["activations"]


@pytest.mark.torch
def test_tied_weights_are_held_once_in_bf16_too(helper: Worker) -> None:
    half = replace(SMALL, precision="bf16-params")
    assert (
        helper.ask(half, EstimateRequest(half, 1)).parameters == helper.ask(SMALL, EstimateRequest(SMALL, 1)).parameters
    )


@pytest.mark.torch
def test_a_model_that_raises_is_named(helper: Worker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="transformers cannot load it"):
        estimate(EstimateRequest(replace(SMALL, model=f"hf:{tmp_path}"), 2), helper)


def test_a_pipeline_is_refused_with_the_reason(helper: Worker) -> None:
    with pytest.raises(UsageError, match="shapes over the network"):
        estimate(EstimateRequest(replace(SMALL, strategy="pytorch_pp"), 2), helper)


def rank_with(least: int, reserved: int) -> RankMemory:
    return RankMemory(0, reserved, reserved, least, least, [], [], 1, "forward", "", "", 0)


@pytest.mark.parametrize(
    ("reserved", "verdict"),
    [(80 * GIB, "fits"), (89 * GIB, "too_close"), (91 * GIB, "too_close"), (99 * GIB, "does_not_fit")],
)
def test_nothing_is_said_below_the_error(reserved: int, verdict: str) -> None:
    assert judge([rank_with(reserved, reserved)], 0, 90 * GIB, 0.05) == verdict
    assert judge([rank_with(reserved, reserved)], 0, None, 0.05) == "unknown"


def test_a_cache_that_does_not_fit_is_no_proof() -> None:
    assert judge([rank_with(40 * GIB, 60 * GIB)], 0, 48 * GIB, 0.02) == "too_close"


def test_what_was_not_measured_has_a_wider_margin() -> None:
    assert error_of(SMALL) == error_of(replace(SMALL, precision="fp32", activation_checkpointing=True))
    assert error_of(SMALL) < error_of(replace(SMALL, model="hf:x")) == error_of(replace(SMALL, grad_accum=2))
    assert error_of(SMALL) < error_of(replace(SMALL, optimizer="adamw8bit"))


def test_the_peak_and_what_held_it() -> None:
    def block(size: int, category: Category, module: str = "", *, lingers: bool = False) -> Allocation:
        return Allocation(size, category, module, TrainingPhase.FORWARD, 1, "op", lingers=lingers)

    weight = block(4 << 20, Category.PARAMETERS)
    first, second = block(2 << 20, Category.ACTIVATIONS, "a"), block(3 << 20, Category.ACTIVATIONS, "b")
    old = block(8 << 20, Category.GRADIENTS, lingers=True)
    events: list[Event] = [
        (weight, True), (old, True), (old, False), (first, True), (second, True), (first, False), (second, False),
    ]  # fmt: skip
    found = summarize(3, events)
    assert (found.rank, found.peak_allocated_bytes, found.least_allocated_bytes) == (3, 17 << 20, 12 << 20)
    assert [(row.name, row.held_bytes) for row in found.activations] == [("b", 3 << 20), ("a", 2 << 20)]
    assert {row.name: row.held_bytes for row in found.categories}["gradients"] == 8 << 20


def test_the_case_of_8_36_billion_parameters() -> None:
    """bf16 weights and gradients and 8-bit Adam leave 47.4 GiB less than nothing for activations."""
    config = replace(SMALL, strategy="simple_ddp", precision="bf16-params", optimizer="adamw8bit")
    found = from_formula(8.36e9, EstimateRequest(config, 1, capacity_of("RTX A6000")))
    assert found.verdict == "does_not_fit"
    assert 46.9 * GIB < found.peak_allocated_bytes < 47.1 * GIB
    assert from_formula(1e9, EstimateRequest(config, 1, capacity_of("A6000"))).verdict == "unknown"


@pytest.mark.parametrize(
    ("text", "size"),
    [("47.4GB", 47_400_000_000), ("1GiB", GIB), ("512MiB", 512 << 20), ("1e9", 10**9), ("80 GB", 80 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "1XB", "1e400GB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match=r"47\.4GiB"):
        size_of(text)


def test_a_size_without_a_unit_is_no_gpus() -> None:
    with pytest.raises(UsageError, match="80: that is 80 bytes, too few for a GPU; give a unit"):
        size_of("80")


@pytest.mark.parametrize("strategy", ["pytorch_tp", "pytorch_pp", "pytorch_cp", "expert_parallel"])
def test_a_formula_does_not_know_what_a_rank_of_a_mesh_holds(strategy: str) -> None:
    """A rank of tensor parallelism holds an eighth of these, and was said not to fit with all of them."""
    with pytest.raises(UsageError, match=f"--params is not enough for {strategy}"):
        from_formula(70e9, EstimateRequest(replace(SMALL, strategy=strategy), 8, capacity_of("H200")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--params", "1e9", "--json", "{}/no/memory.json"], "there is no folder"),
        (["--params", "1e9", "--json", "{}"], "this is a folder"),
        (["{}/a.pickle", "--json", "{}/memory.json"], "--json is for estimates"),
        (["{}/a.pickle", "--gpu", "H100"], "--gpu is for estimates"),
        (["{}", "--rank", "0"], "--rank is for estimates"),
        (["{}/a.pickle", "--batch-size", "4"], "--batch-size is for estimates"),
        (["--rank", "1", "--nproc", "2"], "--rank is for scripts"),
        (["{}", "{}"], "traceops compare explains the memory of two runs"),
    ],
)
def test_what_cannot_be_written_or_read_is_told_before(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *(word.format(tmp_path) for word in words)]) == 2
    told = capsys.readouterr()
    assert said in told.err and not told.out


@pytest.mark.parametrize("words", [["--nproc", "2"], ["--", __file__]])
def test_without_torch_it_is_said_that_torch_is_needed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The light install: it said that a process had ended with exit code 1."""
    monkeypatch.setattr("traceops.core.installation.find_spec", lambda name: None)
    assert main(["memory", *words]) == 2
    assert "estimating the memory of a training needs torch: pip install torch" in capsys.readouterr().err


def test_gpus_by_name() -> None:
    with pytest.raises(UsageError, match="GH200"):
        capacity_of("GH200")  # of 96 GB, and no H200 of 141
    assert capacity_of("NVIDIA H200") == capacity_of("h200") > capacity_of("H100")
    assert workspaces_of("A6000")["cublas"] < workspaces_of("H100")["cublas"] == workspaces_of(None)["cublas"]
    with pytest.raises(UsageError, match="--capacity"):
        capacity_of("Voodoo 2")


def test_proposals_stand_alone_and_together() -> None:
    found = {proposal.name: proposal for proposal in proposals(replace(SMALL, precision="fp32"), 4)}
    joined = found["8-bit Adam"].then(found["activation checkpointing"])
    assert joined is not None
    assert (joined.config.optimizer, joined.config.activation_checkpointing) == ("adamw8bit", True)
    assert found["ZeRO stage 1"].then(found["FSDP2, parameters sharded"]) is None
    assert not any("offload" in option for proposal in found.values() for option in proposal.options)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "memory.json"
    assert main(["memory", "--params", "8.36e9", "--nproc", "8", "--capacity", "80GB", "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "needs at least 126.13 GiB of each, of 74.51 GiB: does not fit" in said
    found = msgspec.json.decode(out.read_bytes(), type=MemoryEstimate)
    assert found.device_bytes == 4 * 4 * 8_360_000_000 + CONTEXT_BYTES + NCCL_BYTES
    assert main(["memory", "--device", "cpu"]) == 2
    assert "estimates GPU memory" in capsys.readouterr().err


def test_an_estimate_is_described() -> None:
    found = from_formula(1e9, EstimateRequest(SMALL, 2, 80 * GIB))
    found.method, found.error_share = "fake_tensors", 0.1
    for verdict, said in (("too_close", "too close to tell"), ("fits", "to spare"), ("does_not_fit", "too much")):
        found.verdict = verdict  # type: ignore[assignment]
        assert said in str(describe_estimate(found)[0])
    found.error_share = 0.02
    assert "(± 2 %)" in str(describe_estimate(found)[0])
    assert json_bytes(found)


def test_a_small_training_is_described_in_mib() -> None:
    """Each category was 0.00 GiB, and the range went from 0.51 to 0.51 GiB."""
    found = from_formula(1e6, EstimateRequest(SMALL, 1))
    found.method, found.error_share = "fake_tensors", 0.1
    found.changes = [MemoryChange("less", ["--dim", "8"], 1 << 30, 2 << 30, 1 << 28, "time", "fits")]
    said = str(describe_estimate(found))
    assert "GiB of each" in said and " to 0.5" not in said and "0.00" not in said
    assert "'MiB'" in said and "'3.8'" in said and "MemoryChange" not in said


def test_no_change_is_tried_after_the_time_that_was_given() -> None:
    tried: list[TrainConfig] = []

    class Helper(Worker):
        def __init__(self) -> None:
            """No process."""

        def ask(self, config: TrainConfig, asked: EstimateRequest) -> DryRunAnswer:
            tried.append(config)
            return DryRunAnswer(ranks=[RankMemory(0, 9 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, [], [], 0, "", "", "", 0)])

    asked = EstimateRequest(TrainConfig(strategy="pytorch_ddp", batch_size=4), 2, 8 * GIB)
    found = estimate(asked, Helper(), within_s=-1.0)
    assert found.verdict == "does_not_fit" and found.changes == [] and len(tried) == 1
