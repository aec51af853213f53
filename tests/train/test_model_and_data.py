"""The GPT predicts from the past only, checkpointing changes nothing, and ranks share the samples out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from started import ROOT, environment

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig, sizes_for

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, optimizer_spec, RandomTokens, TokenStream, batches_of, make_dataset, make_loader
    global GPT, CausalLM, load_tokens, make_model
    import torch

    from traceops.train.build import RandomTokens, TokenStream, batches_of, make_dataset, make_loader, optimizer_spec
    from traceops.train.model import GPT, CausalLM, load_tokens, make_model


SIZES = Sizes(layers=2, dim=16, heads=2, vocab=50, seq_len=8, batch_size=2, workers=0, bucket_mb=1.0)


def gpt(activation_checkpointing: bool = False) -> GPT:
    torch.manual_seed(0)
    return GPT(SIZES, activation_checkpointing).double()


def test_logits_do_not_see_later_tokens() -> None:
    model = gpt()
    tokens = torch.randint(50, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 50
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 50)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_checkpointing_gives_the_same_gradients() -> None:
    tokens, targets = torch.randint(50, (2, 2, 8))
    plain, checkpointed = gpt(), gpt(activation_checkpointing=True)
    for model in (plain, checkpointed):
        model(tokens, targets).backward()
    for (name, p), (_, q) in zip(plain.named_parameters(), checkpointed.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_precision_decides_the_type_of_the_weights() -> None:
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.float32), ("fp64", torch.float64)):
        model = make_model(TrainConfig(precision=precision), SIZES)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.vocab == 50


def batches(rank: int, workers: int, seed: int = 0) -> list[torch.Tensor]:
    loader = make_loader(
        RandomTokens(12, 8, 50, seed),
        rank=rank, world_size=2, batch_size=2, workers=workers, seed=seed, pin_memory=False,
    )  # fmt: skip
    return [tokens for tokens, _ in loader]


def test_ranks_share_all_samples_and_workers_change_nothing() -> None:
    dataset = RandomTokens(12, 8, 50, seed=0)
    everything = {tuple(dataset[i][0].tolist()) for i in range(12)}
    seen = [tuple(row.tolist()) for rank in (0, 1) for batch in batches(rank, workers=0) for row in batch]
    assert len(seen) == 12
    assert set(seen) == everything
    for one, other in zip(batches(1, workers=0), batches(1, workers=2), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(batches(0, workers=0)[0], batches(0, workers=0, seed=1)[0])


def test_an_epoch_begins_the_data_anew_in_another_order() -> None:
    loader = make_loader(
        RandomTokens(12, 8, 50, 0), rank=0, world_size=2, batch_size=2, workers=0, seed=0, pin_memory=False
    )
    seen = [tokens for tokens, _ in batches_of(loader, 2)]
    assert len(seen) == 6 and all(torch.equal(one, other) for one, other in zip(seen[:3], batches(0, 0), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))


def test_targets_are_the_next_tokens() -> None:
    dataset = make_dataset(TrainConfig(), SIZES, vocab=50, samples=4)
    tokens, targets = dataset[3]
    assert torch.equal(tokens[1:], targets[:-1])
    assert tokens.dtype == torch.int64


def test_a_short_text_starts_again_and_a_tiny_one_is_refused() -> None:
    stream = TokenStream(torch.arange(17), samples=5, seq_len=8)
    assert stream.pieces == 2
    assert torch.equal(stream[4][0], stream[0][0])
    assert torch.equal(stream[1][1], torch.arange(9, 17))
    with pytest.raises(UsageError, match="--seq-len 8"):
        TokenStream(torch.arange(8), samples=5, seq_len=8)


def test_weights_of_bf16_params() -> None:
    config = TrainConfig(precision="bf16-params")
    model = make_model(config, Sizes(1, 8, 2, 16, 8, 1, 0, 1.0))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    loss = model(torch.zeros((1, 8), dtype=torch.int64), torch.zeros((1, 8), dtype=torch.int64))
    assert loss.dtype is torch.float32  # a sum over the vocabulary needs the digits


def test_a_missing_torchao_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UsageError, match=r"pip install torchao \(traceops's extra \[lowbit\]\)"):
        optimizer_spec(TrainConfig(optimizer="adamw8bit"))


SCRIPT = str(ROOT / "runners" / "train.py")
SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--seq-len", "16", "--device", "cpu"]


def torchrun(folder: Path, *argv: str, compiler: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, SCRIPT, *argv], cwd=folder, env=environment(compiler=compiler), capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("argv", "samples"),
    [
        (["--strategy", "zero3", "--grad-accum", "2", "--activation-checkpointing"], 16),
        (["--strategy", "pytorch_ddp", "--grad-accum", "2", "--step-unit", "batch"], 8),
    ],
)
def test_trains_and_documents_itself(tmp_path: Path, argv: list[str], samples: int) -> None:
    done = torchrun(tmp_path, *SMALL, *argv, compiler="zero3" in argv)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(next(tmp_path.rglob("run.json")).read_text())
    training = manifest["training"]
    assert manifest["strategy"] == training["strategy"] == argv[1]
    assert training["syncs_in_backward"] is True
    assert training["samples_per_step"] == samples
    assert training["tokens_per_step"] == samples * 16
    assert training["config"]["layers"] == 2
    assert training["parameters"] == 1024 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 9 * 32) + 2 * 32
    traces = list(tmp_path.rglob("rank_*/*.pt.trace.json.gz"))
    assert {trace.parent.name for trace in traces} == {"rank_0", "rank_1"}


def test_what_the_backend_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *SMALL, "--backend", "nccl")
    assert done.returncode != 0
    assert "--backend nccl" in done.stderr
    assert not list(tmp_path.rglob("run.json"))


def test_without_torchrun_it_says_how_to_start(tmp_path: Path) -> None:
    clean = {name: value for name, value in environment().items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "torchrun" in done.stderr


TEXTS = ["the cat sat", "on the mat", "and the dog sat on the cat"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of a few hundred parameters with a word tokenizer, saved with its weights."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    words = ["[UNK]", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=8, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    pytest.importorskip("datasets")
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS * 4)))
    return path


def test_weights_of_a_local_folder_are_used(model_folder: Path) -> None:
    one, other = CausalLM(str(model_folder), 8), CausalLM(str(model_folder), 8)
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    assert one.training
    assert one.model.lm_head.weight is one.model.transformer.wte.weight


def test_model_and_data_meet_in_a_loss(model_folder: Path, data_file: Path) -> None:
    config = TrainConfig(
        model=f"hf:{model_folder}", data=f"hf:{data_file}", seq_len=8, precision="fp64",
        activation_checkpointing=True,
    )  # fmt: skip
    sizes = sizes_for(config, "cpu")
    model = make_model(config, sizes)
    tokens, targets = make_dataset(config, sizes, model.vocab, samples=3)[2]
    assert tokens.max() < model.vocab
    assert model(tokens[None]).shape == (1, 8, model.vocab)
    model(tokens[None], targets[None]).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in model.parameters())


def test_a_folder_without_weights_gets_random_ones(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())
    torch.manual_seed(1)
    assert CausalLM(str(tmp_path), 8).vocab == CausalLM(str(model_folder), 8).vocab


def test_tokens_come_from_the_tokenizer_or_are_bytes(model_folder: Path, data_file: Path) -> None:
    assert bytes(load_tokens(str(data_file), None, 12).tolist()) == b"the cat sat\n"
    words = load_tokens(str(data_file), str(model_folder), 6)
    assert words[0] == words[4], "'the' twice"
    assert len(load_tokens(str(data_file), str(model_folder), 10_000)) == 4 * sum(len(t.split()) for t in TEXTS)


def test_plain_text_is_read_by_line(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    assert bytes(load_tokens(str(path), None, 100).tolist()) == b"one\ntwo\n"


def test_what_cannot_be_loaded_is_said(model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UsageError, match="16 positions"):
        CausalLM(str(model_folder), 32)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="cannot load it"):
        CausalLM(str(empty), 8)
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="no column of text, only a, b"):
        load_tokens(str(numbers), None, 10)
    with pytest.raises(UsageError, match="cannot load it"):
        load_tokens(str(empty), None, 10)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    for load in (lambda: CausalLM("x", 8), lambda: load_tokens("x", None, 1)):
        with pytest.raises(UsageError, match=r"pip install (transformers|datasets) .*\[hf\]"):
            load()
