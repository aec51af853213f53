"""`traceops memory -- SCRIPT`: a script's first steps on fake GPUs, against peaks measured on real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.cli import memory as command
from traceops.cli.memory import is_script
from traceops.core.errors import UsageError
from traceops.memory.allocator import Category
from traceops.memory.estimate import EstimateRequest
from traceops.memory.model import ScriptProblem, ScriptRequest, environment
from traceops.memory.script import _NOTES, _TROUBLES, AskedScript, _said, estimate_script
from traceops.render.memory import headline

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "tests" / "data" / "memory" / "scripts.json"
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
    (run,) = [run for run in json.loads(MEASURED.read_text())["runs"] if run["name"] == "gpt_views"]
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
    assert all(text and not text.endswith(".") for text in _NOTES.values())


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
