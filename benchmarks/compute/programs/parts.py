"""Parts that programs are built of: layers and losses, others' language models, and a decoder with its cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from case import DEVICE, size, tokens
from torch import nn

BF16 = torch.bfloat16


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """A transformer's layer, normed by RMS, with the attention that it is given."""

    def __init__(self, width: int, heads: int, attend: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = SwiGLU(width, width * 2)
        self.attend = attend or F.scaled_dot_product_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.between(x))


def stack(layers: int, width: int, heads: int, attend: Callable[..., torch.Tensor] | None = None) -> nn.Module:
    return nn.Sequential(*[Layer(width, heads, attend) for _ in range(layers)]).to(DEVICE)


def deep_mlp(layers: int, width: int) -> nn.Module:
    blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*blocks).to(DEVICE)


def convolutions(width: int, depth: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        parts += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)).to(DEVICE)


def mean_square(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: model(x).float().square().mean()


def classify(model: nn.Module, x: torch.Tensor, classes: int = 1000) -> Any:
    y = tokens(classes, x.shape[0])
    return lambda: F.cross_entropy(model(x), y)


def llama_config(
    vocabulary: int = 32000, layers: int = 4, attention: str = "sdpa", width: int = 1024, grouped: bool = True
) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=size(vocabulary, 64), hidden_size=size(width, 32), intermediate_size=3 * size(width, 32),
        num_hidden_layers=size(layers, 1), num_attention_heads=size(width // 64, 2),
        num_key_value_heads=size(width // 256, 1) if grouped else size(width // 64, 2),
        max_position_embeddings=4096, attn_implementation=attention,
    )  # fmt: skip


def llama(**config: Any) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(llama_config(**config)).to(DEVICE)


def gpt2(vocabulary: int, attention: str = "sdpa", layers: int = 4) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary, n_embd=size(768, 32), n_layer=size(layers, 1), n_head=size(12, 2),
        attn_implementation=attention, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(DEVICE)


def bert(layers: int = 6) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=size(768, 32),
        intermediate_size=size(3072, 64),
        num_hidden_layers=size(layers, 1),
        num_attention_heads=size(12, 2),
    )
    return BertForSequenceClassification(config).to(DEVICE)


def language(model: Any, ids: torch.Tensor) -> Any:
    return lambda: model(input_ids=ids, labels=ids).loss


class Attention(nn.Module):
    """Grouped-query attention over a cache made once: `how` says how the cache is read."""

    def __init__(self, width: int, heads: int, groups: int, batch: int, length: int, how: str) -> None:
        super().__init__()
        self.heads, self.groups, self.how, self.size = heads, groups, how, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.keys = torch.zeros(batch, groups, length, self.size, device=DEVICE, dtype=BF16)
        self.values = torch.zeros_like(self.keys)

    def forward(self, x: torch.Tensor, at: int) -> torch.Tensor:
        batch = x.shape[0]
        q = self.q(x).view(batch, 1, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, 2, self.groups, self.size).unbind(1)
        self.keys[:, :, at], self.values[:, :, at] = k, v
        keys, values, mask = self.keys, self.values, None
        if self.how == "masked":
            mask = (torch.arange(keys.shape[2], device=x.device) <= at).view(1, 1, 1, -1)
        else:
            keys, values = keys[:, :, : at + 1], values[:, :, : at + 1]
        many = self.heads // self.groups
        if self.how == "repeated":
            keys, values = keys.repeat_interleave(many, 1), values.repeat_interleave(many, 1)
        grouped = many > 1 and self.how != "repeated"
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, 1, -1))


class Decoder(nn.Module):
    def __init__(
        self, width: int, heads: int, groups: int, layers: int, batch: int, length: int, how: str = "sliced"
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Attention(width, heads, groups, batch, length, how) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.embedding, self.head = nn.Embedding(32000, width), nn.Linear(width, 32000, bias=False)

    def forward(self, ids: torch.Tensor, at: int) -> torch.Tensor:
        x = self.embedding(ids)
        for norm, attention, mlp in zip(self.norms, self.attention, self.mlp, strict=True):
            x = x + attention(norm(x), at)
            x = x + mlp(x)
        return self.head(x)


def decoder(*args: int, how: str = "sliced") -> Decoder:
    return Decoder(*args, how=how).to(DEVICE, BF16).eval()
