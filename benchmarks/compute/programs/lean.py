"""Further programs with nothing to find: bfloat16, fused, compiled where that helps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from answering import BF16
from case import DEVICE, SMALL, Step, adamw, captured, images, inference, normal, size, tokens, training, tuned
from libraries import classify, language
from serving import decoder
from torch import nn
from tuned import compiled
from zoo import qwen


class ChatBlock(nn.Module):
    """In the manner of nanochat: queries and keys normed, squared ReLU, no biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (w,))).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        q, k = (F.rms_norm(a, (w // self.heads,)) for a in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (w,)))).square())


@tuned
def lean_nanochat() -> Step:
    width, vocabulary = size(2048, 32), size(32768, 64)
    body = nn.Sequential(
        nn.Embedding(vocabulary, width), *[ChatBlock(width, size(16, 2)) for _ in range(size(3, 1))]
    ).to(DEVICE, BF16)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE, BF16)
    ids = tokens(vocabulary, size(8, 1), size(2048, 8))
    loss = compiled(lambda: F.cross_entropy(head(body(ids)).flatten(0, 1).float(), ids.flatten()))
    return training(loss, adamw(nn.ModuleList([body, head])), autocast=False)


@tuned
def lean_hf_qwen() -> Step:
    model = qwen(3, 2048)
    model.forward = compiled(model.forward)
    return training(language(model, tokens(size(32000, 64), size(8, 1), size(1024, 8))), adamw(model), autocast=False)


class DiT(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.shift = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        s1, g1, a1, s2, g2, a2 = self.shift(F.silu(c))[:, None].chunk(6, -1)
        h = self.norm(x) * (1 + g1) + s1
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + a1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w))
        return x + a2 * self.mlp(self.norm(x) * (1 + g2) + s2)


@tuned
def lean_diffusion_transformer() -> Step:
    width = size(1536, 32)
    blocks = nn.ModuleList(DiT(width, size(12, 2)) for _ in range(size(3, 1))).to(DEVICE)
    x, c = normal(size(32, 1), size(1024, 8), width), normal(size(32, 1), width)

    def loss() -> torch.Tensor:
        h = x
        for block in blocks:
            h = block(h, c)
        return h.float().square().mean()

    return training(compiled(loss), adamw(blocks))


@tuned
def lean_timm_siglip() -> Step:
    import timm

    name = "vit_tiny_patch16_224" if SMALL else "vit_so400m_patch14_siglip_224"
    model = timm.create_model(name, depth=size(4, 1)).to(DEVICE, BF16).eval()
    x = images(size(192, 1), 224, False, BF16)
    forward = compiled(model)
    return inference(lambda: forward(x))


@tuned
def lean_prefill() -> Step:
    width = size(4096, 32)
    blocks = nn.Sequential(*[ChatBlock(width, size(32, 2)) for _ in range(size(3, 1))]).to(DEVICE, BF16).eval()
    x = normal(size(2, 1), size(8192, 16), width, dtype=BF16)
    forward = compiled(blocks)
    return inference(lambda: forward(x))


@tuned
def lean_graphed_decode() -> Step:
    batch, at = size(128, 2), size(2047, 4)
    model = decoder(size(4096, 32), size(32, 4), size(8, 1), size(3, 1), batch, at + 1)
    ids = tokens(32000, batch, 1)
    token = captured(inference(lambda: model(ids, at)))
    return lambda: [token() for _ in range(2)]


@tuned
def lean_autoencoder() -> Step:
    width = size(256, 8)
    parts = [part for _ in range(4) for part in (nn.Conv2d(width, width, 3, padding=1, bias=False), nn.SiLU())]
    model = nn.Sequential(nn.Conv2d(3, width, 8, stride=8), *parts, nn.ConvTranspose2d(width, 3, 8, stride=8))
    model = model.to(DEVICE, BF16).to(memory_format=torch.channels_last)
    x = images(size(64, 1), size(512, 16), True, BF16)
    loss = compiled(lambda: (model(x) - x).float().square().mean())
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-6, fused=True), autocast=False)


@tuned
def lean_experts() -> Step:
    experts, rows, width = size(8, 2), size(4096, 8), size(2048, 32)
    up, down = (nn.Parameter(normal(experts, *s, dtype=BF16) * 0.02) for s in ((width, 4 * width), (2 * width, width)))
    x = normal(experts, rows, width, dtype=BF16)

    def loss() -> torch.Tensor:
        gate, value = torch.bmm(x, up).chunk(2, -1)
        return torch.bmm(F.silu(gate) * value, down).float().square().mean()

    return training(compiled(loss), torch.optim.SGD([up, down], lr=1e-6, fused=True), autocast=False)


@tuned
def lean_half_classifier() -> Step:
    width = size(6144, 32)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(DEVICE, torch.float16)
    x = normal(size(16384, 8), width, dtype=torch.float16)
    loss = compiled(classify(model, x, width))
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-6, fused=True), autocast=False)
