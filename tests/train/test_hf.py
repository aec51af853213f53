"""`hf:` models and data, on a tiny model folder and data files made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from traceops.core.errors import UsageError
from traceops.train.config import TrainConfig, sizes_for

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, make_dataset, CausalLM, load_tokens, make_model
    import torch

    from traceops.train.build import make_dataset
    from traceops.train.model import CausalLM, load_tokens, make_model


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
