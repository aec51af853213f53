"""A small GPT in the manner of nanoGPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from traceops.train.config import Sizes


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
        """Logits (batch, length, vocab) of `tokens` (batch, length); with `targets`, the mean loss.

        `positions` (length,) are those of the tokens in their sequence, None for 0, 1, 2, …
        """
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
