"""Models and text through transformers and datasets, the extra `hf`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from traceops.core.errors import UsageError
from traceops.train.gpt import LanguageModel, loss_or_logits

_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}  # text for the rest
_WEIGHTS = ("*.safetensors", "*.bin")
_TEXT = ("string", "large_string")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"hf: needs the {name} library: pip install {name} (traceops's extra [hf])") from error


class CausalLM(LanguageModel):
    """A causal language model of transformers with the interface of the built-in GPT.

    `name` is one of the hub or a local folder; a folder with a config.json but no weights gets random ones.
    Raises UsageError for what transformers cannot load, and for samples longer than the model's positions.
    """

    def __init__(self, name: str, seq_len: int, activation_checkpointing: bool = False) -> None:
        super().__init__()
        transformers = _library("transformers")
        folder = Path(name)
        try:
            if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
                config = transformers.AutoConfig.from_pretrained(name)
                model = transformers.AutoModelForCausalLM.from_config(config)
            else:
                model = transformers.AutoModelForCausalLM.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise UsageError(f"--model hf:{name}: transformers cannot load it: {error}") from error
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and seq_len > positions:
            raise UsageError(f"--seq-len {seq_len}: hf:{name} has {positions} positions; use that or less")
        if activation_checkpointing:
            # A reentrant checkpoint runs backward inside backward, which gradient hooks do not survive.
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.vocab = model.config.vocab_size
        self.model: nn.Module = model.train()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits (batch, length, vocab) of `tokens` (batch, length); with `targets`, the mean loss."""
        return loss_or_logits(self.model(input_ids=tokens, use_cache=False).logits, targets)


def load_tokens(name: str, tokenizer: str | None, count: int) -> Tensor:
    """The first `count` tokens of a text, or all if it has fewer: int64, shape (tokens,).

    `name` is a dataset of the hub (``NAME`` or ``NAME:CONFIG``), a local folder or a local file (jsonl, csv,
    parquet or text). `tokenizer` is a model name or folder; None reads UTF-8 bytes as tokens.
    Raises UsageError for what cannot be loaded and for data without a text column.
    """
    texts = _texts(name)
    if tokenizer is None:
        encode: Any = lambda text: list(text.encode())  # noqa: E731
    else:
        try:
            encode = _library("transformers").AutoTokenizer.from_pretrained(tokenizer).encode
        except (OSError, ValueError) as error:
            raise UsageError(f"hf:{tokenizer} has no tokenizer that loads: {error}") from error
    ids = (token for text in texts for token in encode(text + "\n"))
    return torch.tensor(list(islice(ids, count)), dtype=torch.int64)


def _texts(name: str) -> Iterator[str]:
    datasets = _library("datasets")
    path = Path(name)
    try:
        if path.is_file():
            rows = datasets.load_dataset(_READERS.get(path.suffix, "text"), data_files=str(path), split="train")
        elif path.is_dir():
            rows = datasets.load_dataset(str(path), split="train")
        else:
            rows = datasets.load_dataset(*name.split(":", 1), split="train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"--data hf:{name}: datasets cannot load it: {error}") from error
    columns = [column for column, kind in rows.features.items() if getattr(kind, "dtype", "") in _TEXT]
    if not columns:
        raise UsageError(f"--data hf:{name} has no column of text, only {', '.join(rows.column_names)}")
    column = "text" if "text" in columns else columns[0]
    return (row[column] for row in rows if row[column])
