"""`traceops memory` against peaks measured on GPUs: built-in trainings, scripts, and the model of torch's allocator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from changed import replace

from benchmarks.memory.estimates import DATA, MEASURED, errors, estimates
from benchmarks.memory.torchtitan import Peak, drawn_out
from traceops.cli import main
from traceops.cli import memory as command
from traceops.cli.memory import is_script
from traceops.core.claims import phrases
from traceops.core.documents import json_bytes
from traceops.core.errors import UsageError
from traceops.memory.allocator import (
    Allocation,
    CachingAllocator,
    Category,
    Event,
    TrainingPhase,
    expandable_segments,
    rounded,
    summarize,
)
from traceops.memory.estimate import (
    _TROUBLES,
    AskedScript,
    EstimateRequest,
    Worker,
    _said,
    error_of,
    estimate,
    estimate_script,
    from_formula,
    judge,
    worker,
)
from traceops.memory.gpus import hardware_of
from traceops.memory.model import (
    CONTEXT_BYTES,
    NCCL_BYTES,
    MemoryChange,
    MemoryEstimate,
    Note,
    RankMemory,
    ScriptProblem,
    ScriptRequest,
    environment,
    size_of,
)
from traceops.memory.worker import DryRunAnswer
from traceops.render.memory import describe_estimate, headline
from traceops.train.config import TrainConfig
from traceops.words.catalogue import sections

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
    found = from_formula(8.36e9, EstimateRequest(config, 1, hardware_of("RTX A6000").capacity))
    assert found.verdict == "does_not_fit"
    assert 46.9 * GIB < found.peak_allocated_bytes < 47.1 * GIB
    assert from_formula(1e9, EstimateRequest(config, 1, hardware_of("A6000").capacity)).verdict == "unknown"


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
        from_formula(70e9, EstimateRequest(replace(SMALL, strategy=strategy), 8, hardware_of("H200").capacity))


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
    monkeypatch.setattr("traceops.core.torch_here.find_spec", lambda name: None)
    assert main(["memory", *words]) == 2
    assert "estimating the memory of a training needs torch: pip install torch" in capsys.readouterr().err


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


MIB = 1 << 20


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (0, 512), (MIB + 1, MIB + 512)])
def test_blocks_are_multiples_of_512_bytes(size: int, block: int) -> None:
    assert rounded(size) == block


@pytest.mark.parametrize(
    ("size", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments_by_size(size: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.peak_reserved == reserved


def test_a_segment_is_split_and_joined_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]  # of one segment of 20 MiB
    assert allocator.reserved == 20 * MIB
    for block in (blocks[1], blocks[3], blocks[2], blocks[0], blocks[4]):
        allocator.release(block)
    allocator.allocate(20 * MIB)
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 20 * MIB)


def test_what_is_left_between_blocks_is_of_no_use_to_a_larger_one() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.release(blocks[0])
    allocator.release(blocks[2])  # 10 MiB are free, in two pieces
    allocator.allocate(10 * MIB)
    assert (allocator.peak_allocated, allocator.reserved) == (20 * MIB, 30 * MIB)


def test_streams_do_not_share_what_is_free() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(30 * MIB, stream=1))
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_an_expandable_segment_grows_by_what_is_missing() -> None:
    """20 MiB at a time; what is free at its end is used first, and only where no other piece fits."""
    allocator = CachingAllocator(expandable=True)
    first, second, third = (allocator.allocate(size * MIB) for size in (3, 30, 5))
    assert allocator.reserved == 40 * MIB
    allocator.release(second)
    allocator.allocate(31 * MIB)  # does not fit between, and 2 MiB are free at the end
    assert allocator.reserved == 80 * MIB
    allocator.allocate(12 * MIB)  # between, although what is free at the end is smaller than that
    assert allocator.reserved == 80 * MIB
    allocator.allocate(9 * MIB)  # so also where 11 MiB are free at the end, and between 18
    allocator.allocate(9 * MIB)
    allocator.allocate(11 * MIB)
    assert (allocator.reserved, allocator.allocated) == (80 * MIB, 80 * MIB)
    for block in (first, third):
        allocator.release(block)
    allocator.allocate(1, stream=1)  # a pool of its own, of small blocks
    assert allocator.reserved == 82 * MIB


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512, expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:False", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "", False),
    ],
)
def test_settings_of_the_environment(name: str, said: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv(name, said)
    assert expandable_segments() is expected


ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "data" / "memory" / "scripts.json"
GPT = ROOT / "benchmarks" / "memory" / "programs" / "gpt_autocast.py"

# It raises where something is not as on a GPU; its last step selects by values.
SCRIPT = """
import os, socket, sys, threading
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def train(rank, world):
    assert torch.cuda.is_available() and torch.cuda.device_count() == 4
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(4, device="cuda").is_cuda))
    thread.start(), thread.join()
    assert made == [True] and torch.device(rank) == torch.device("cuda", rank)
    query = torch.ones(1, 2, 8, 8, device="cuda", requires_grad=True)
    for learned in (False, True):  # no fused attention takes a mask that is
        mask = torch.zeros(8, 8, device="cuda", requires_grad=learned)
        out = nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        assert ("EfficientAttention" in out.grad_fn.name()) is not learned
    said = [None] * world
    torch.distributed.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": rank}] * world
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 16, bias=False))
    model[3].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model.to(rank)
    weight = model[0].weight
    assert model[3].weight is weight and any(p is weight for p in optimizer.param_groups[0]["params"])
    assert str(weight.device) == f"cuda:{rank}" and weight.is_cuda and weight.to("cuda") is weight
    assert torch.tensor([3, 4]).cuda().cpu().tolist() == [3, 4] and torch.randperm(5).tolist() != [1] * 5
    assert not torch.isnan(weight.sum()) and torch.ones(2, device="cuda").sum().item() == 1
    ddp = DistributedDataParallel(torch.compile(model), device_ids=[rank])
    rows = TensorDataset(torch.arange(64).view(16, 4) % 16)
    for number, (tokens,) in enumerate(DataLoader(rows, batch_size=4, num_workers=2, pin_memory=True)):
        assert tokens.max().item() < 16 and tokens.tolist()[0][1] == 1
        tokens = tokens.to(rank, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = ddp(tokens)
            assert out.dtype is torch.bfloat16 and out.exp().dtype is torch.float32
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten())
        loss.backward()
        assert all(p.grad.is_cuda for p in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), sys.argv[1])
        try:
            socket.create_connection(("192.0.2.1", 80), 1)
            raise AssertionError("connected")
        except OSError as refused:
            assert "no network" in str(refused)
        loss = out[out.float().sum(-1) > 0].sum()  # here

torch.multiprocessing.spawn(train, args=(4,), nprocs=4)
"""


@pytest.mark.torch
def test_a_script_needs_what_it_needed_on_gpus() -> None:
    (run,) = [run for run in json.loads(SCRIPTS.read_text())["runs"] if run["name"] == "gpt_views"]
    words = [str(GPT), *run["command"].split()[1:]]
    found = estimate_script(AskedScript(words, run["world_size"], gpu="H200"))
    _, allocated, reserved = run["ranks"][0]
    assert abs(found.peak_allocated_bytes / allocated - 1) < 0.001
    assert abs(found.peak_reserved_bytes / reserved - 1) < 0.02
    assert (found.strategy, found.command[-4:]) == ("script", [str(GPT), "--views", "--accum", "1"])
    assert found.parameters == 255_227_904
    assert headline(found).startswith("gpt_autocast.py on 2 GPUs needs ")
    assert "h.0" in {row.name for row in found.ranks[0].activations}
    assert {row.name for row in found.ranks[0].categories} >= {"parameter_casts", "gradients", "optimizer_state"}


@pytest.mark.torch
def test_a_script_finds_gpus_and_what_cannot_be_faked_is_named_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "model.pt"
    script.write_text(SCRIPT)
    assert main(["memory", "--nproc", "4", "--rank", "3", "--", str(script), str(saved)]) == 2
    line = next(number for number, text in enumerate(SCRIPT.split("\n"), 1) if "# here" in text)
    said = capsys.readouterr().err
    assert f"train.py:{line}: a shape depends on values, which fake tensors do not have" in said, said
    assert "let the shape be fixed there" in said
    assert not saved.exists()


@pytest.mark.parametrize("trouble", _TROUBLES)
def test_each_trouble_says_where_and_what_to_do(trouble: str) -> None:
    problem = ScriptProblem(trouble, "train.py:3", "x = y", "Error: it")  # type: ignore[arg-type]
    said = _said(problem, AskedScript(["train.py"], 1))
    assert said.startswith("train.py:3: ")
    assert "\n  x = y\n  Error: it\nTo go on: " in said
    assert _said(ScriptProblem(trouble), AskedScript(["-m", "pkg.train"], 1)).startswith("-m pkg.train: ")  # type: ignore[arg-type]


def test_what_a_script_printed_last_is_told_where_it_ended_by_itself() -> None:
    asked, log = AskedScript(["train.py"], 1), "train.py: error: the following arguments are required: --n"
    assert f"It printed last: {log}\nTo go on" in _said(ScriptProblem("left", said="SystemExit: 2"), asked, log)
    assert "printed" not in _said(ScriptProblem("left", said=f"SystemExit: {log}"), asked, log)
    assert "printed" not in _said(ScriptProblem("shape"), asked, log)


@pytest.mark.torch
def test_a_training_on_the_cpu_is_no_estimate_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from traceops.memory.script_worker import Rehearsal

    def caught(_: object, problem: ScriptProblem | None) -> None:
        raise UsageError("estimated" if problem is None else problem.trouble)

    monkeypatch.setattr(Rehearsal, "_answer", caught)
    rehearsal, optimizer = Rehearsal(ScriptRequest(["train.py"], 0, 1, 8, 1, 1, {}, "")), object()
    with pytest.raises(UsageError, match="no_gpu"):
        rehearsal._stepped(optimizer)  # type: ignore[arg-type]
    rehearsal._tracker.take(1, Category.INPUTS, "empty")
    with pytest.raises(UsageError, match="estimated"):
        rehearsal._stepped(optimizer)  # type: ignore[arg-type]


@pytest.mark.torch
def test_an_error_of_a_model_on_the_cpu_is_told_as_that(tmp_path: Path) -> None:
    """Backward of its loss met a tensor of a GPU: the advice was to run it on a GPU, where it takes none either."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "labels = torch.zeros(2, dtype=torch.long)\n"
        "for _ in range(3):\n"
        "    torch.nn.functional.cross_entropy(model(torch.randn(2, 4)), labels).backward()\n"
        "    optimizer.step()\n"
    )
    with pytest.raises(UsageError, match="it put nothing on a GPU"):
        estimate_script(AskedScript([str(script)], 1))


@pytest.mark.torch
def test_what_python_cannot_load_is_no_matter_of_fake_tensors() -> None:
    from traceops.memory.script_worker import _trouble

    assert [_trouble(error) for error in (SyntaxError(), ModuleNotFoundError())] == ["not_loaded"] * 2
    assert _trouble(KeyError()) == "raised"


def test_notes_have_words() -> None:
    [said] = phrases("gpu_memory", "assumptions", "script", compiled=True)[-1:]
    assert "torch.compile" in said
    assert all(f"{{{note}:if}}" in sections("gpu_memory")["assumptions"]["script"] for note in get_args(Note))


def test_the_environment_is_torchruns() -> None:
    request = ScriptRequest(["train.py"], 11, 16, 8, 1, 2, {}, "")
    found = environment(request)
    assert (found["RANK"], found["LOCAL_RANK"], found["GROUP_RANK"]) == ("11", "3", "1")
    assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"], found["GROUP_WORLD_SIZE"]) == ("16", "8", "2")


def test_scripts_and_snapshots_are_told_apart() -> None:
    assert is_script(["train.py", "--lr", "1"])
    assert is_script(["-m", "pkg.train"])
    assert not is_script(["before.pickle", "after.pickle"])
    assert not is_script(["profile/run"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-size", "2"], "--batch-size is for built-in strategies"),
        (["--global-batch-size", "8"], "--global-batch-size is for built-in strategies"),
        (["--params", "1e9"], "--params is for built-in strategies"),
        (["--rank", "2", "--nproc", "2"], "one of the ranks 0 to 1"),
    ],
)
def test_options_that_are_not_a_scripts_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *options, "--", str(GPT)]) == 2
    assert said in capsys.readouterr().err
    assert main(["memory", "--", "nowhere.py"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_global_batch_is_divided(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[EstimateRequest] = []

    def caught(asked: EstimateRequest, *_: object, **__: object) -> None:
        seen.append(asked)
        raise UsageError("enough")

    monkeypatch.setattr(command, "estimate", caught)
    words = ["memory", "--strategy", "pytorch_ddp", "--nproc", "2", "--grad-accum", "2", "--global-batch-size"]
    assert main([*words, "16"]) == 2
    assert seen[0].config.batch_size == 4
    assert main([*words, "15"]) == 2
    assert "use a multiple of 4" in capsys.readouterr().err


@pytest.mark.torch
def test_what_a_script_makes_before_its_steps_is_no_buffer_of_sharding() -> None:
    """200 GiB that a script without FSDP made at its start were `buffers of sharding`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from traceops.memory.tracker import Tracker

    tracker = Tracker({}, before_steps=Category.BEFORE_STEPS)
    with FakeTensorMode(), tracker:
        whole = torch.empty(4096)
        with tracker.communication():
            shard = torch.empty(8)
    assert [made.category for made, _ in tracker.events[:2]] == [Category.BEFORE_STEPS, Category.SHARDING]
    assert whole.numel() > shard.numel()
