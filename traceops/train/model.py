"""The models: the built-in GPT, and models and text of transformers and datasets (the extra `hf`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig


class LanguageModel(nn.Module):
    """Takes token ids below `vocab`; gives logits, or the loss against targets."""

    vocab: int

    def flops_per_token(self, length: int) -> float | None:
        """Operations of forward and backward for a token of a sequence of `length`; None where nobody counted them."""
        return None


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # Head by head, so that tensor parallel ranks hold whole heads: as many as their part of the weight has.
        qkv = self.qkv(x).view(batch, length, -1, 3, self.head_dim)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class GPT(LanguageModel):
    """Decoder-only transformer with learned positions and the head tied to the token embedding."""

    def __init__(self, sizes: Sizes, activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.vocab = sizes.vocab
        self.activation_checkpointing = activation_checkpointing
        self.tokens = nn.Embedding(sizes.vocab, sizes.dim)
        self.positions = nn.Embedding(sizes.seq_len, sizes.dim)
        self.blocks = nn.ModuleList(Block(sizes.dim, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, sizes.vocab, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def flops_per_token(self, length: int) -> float:
        """6 for each weight that is multiplied, and attention's products, counted in full [PaLM, appendix B]."""
        weights = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        return 6.0 * weights + 12.0 * len(self.blocks) * length * self.tokens.embedding_dim

    def forward(self, tokens: Tensor, targets: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Logits (batch, length, vocab) of `tokens` (batch, length); with `targets`, the mean loss. `positions`
        (length,) are those of the tokens in their sequence, None for 0, 1, 2, …"""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.activation_checkpointing else block(x)
        return loss_or_logits(self.head(self.norm(x)), targets)


def loss_or_logits(logits: Tensor, targets: Tensor | None) -> Tensor:
    """`logits` (batch, length, vocab), or their mean cross-entropy against `targets` (batch, length)."""
    if targets is None:
        return logits
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()  # a sum over the vocabulary needs the digits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


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


_STORED = {"fp64": torch.float64, "bf16-params": torch.bfloat16}


def make_model(config: TrainConfig, sizes: Sizes) -> LanguageModel:
    """The model of ``--model`` on the CPU, in float32, or float64 for fp64 and bfloat16 for bf16-params. Raises
    UsageError for a model that transformers cannot load."""
    model: LanguageModel
    if config.model == "gpt":
        model = GPT(sizes, config.activation_checkpointing)
    else:
        model = CausalLM(config.model.removeprefix("hf:"), sizes.seq_len, config.activation_checkpointing)
    return model.to(_STORED.get(config.precision, torch.float32))
