"""Programs with nothing to find: bfloat16, fused, compiled where that helps. Half of them are others' models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from case import DEVICE, SMALL, Step, adamw, captured, images, inference, normal, size, tokens, training, tuned
from parts import SwiGLU, bert, classify, decoder, gpt2, language, llama
from torch import nn

BF16 = torch.bfloat16


def compiled(function: Any, **more: Any) -> Any:
    return torch.compile(function, dynamic=False, **more)


class CausalSelfAttention(nn.Module):
    """As nanoGPT's model.py has it."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class NanoBlock(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd, bias=False), nn.LayerNorm(n_embd, bias=False)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(self, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(NanoBlock(n_embd, n_head) for _ in range(n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd, bias=False), nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


@tuned
def tuned_nanogpt(vocabulary: int = 50304) -> Step:
    model = NanoGPT(size(vocabulary, 64), size(1024, 8), size(4, 1), size(12, 2), size(1536, 32)).to(DEVICE)
    ids = tokens(size(vocabulary, 64), size(12, 1), size(1024, 8))
    model = compiled(model)
    return training(lambda: model(ids, ids), adamw(model))


class TitanBlock(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.feed_forward = SwiGLU(dim, dim * 7 // 2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        bs, length, dim = x.shape
        h = self.attention_norm(x)
        q = self.wq(h).view(bs, length, self.n_heads, self.head_dim)
        k = self.wk(h).view(bs, length, self.n_kv_heads, self.head_dim)
        v = self.wv(h).view(bs, length, self.n_kv_heads, self.head_dim)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        x = x + self.wo(y.transpose(1, 2).reshape(bs, length, dim))
        return x + self.feed_forward(self.ffn_norm(x))


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class TitanLlama(nn.Module):
    """In the manner of torchtitan: each block compiled by itself, weights in bfloat16 as FSDP gathers them."""

    def __init__(self, vocab: int, dim: int, layers: int, heads: int, kv_heads: int, length: int) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(vocab, dim), nn.Linear(dim, vocab, bias=False)
        self.layers = nn.ModuleList(TitanBlock(dim, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        half = dim // heads // 2
        angles = torch.outer(torch.arange(length), 10000 ** -(torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def titan(layers: int, length: int) -> TitanLlama:
    sizes = (size(32000, 64), size(2048, 32), size(layers, 1), size(16, 2), size(4, 1), length)
    model = TitanLlama(*sizes).to(DEVICE, BF16)
    for layer in model.layers:
        layer.compile(dynamic=False)
    return model


@tuned
def tuned_titan_llama() -> Step:
    length = size(2048, 8)
    model = titan(6, length)
    ids = tokens(size(32000, 64), size(4, 1), length)
    loss = compiled(lambda z, y: F.cross_entropy(z.float(), y))
    return training(lambda: loss(model(ids).flatten(0, 1), ids.flatten()), adamw(model), autocast=False)


@tuned
def tuned_titan_prefill() -> Step:
    length = size(4096, 8)
    model = titan(4, length).eval()
    ids = tokens(size(32000, 64), size(4, 1), length)
    return inference(lambda: model(ids)[:, -1])


@tuned
def tuned_timm_vit() -> Step:
    import timm

    name = "vit_tiny_patch16_224" if SMALL else "vit_large_patch16_224"
    model = timm.create_model(name, depth=size(5, 1), num_classes=1000).to(DEVICE)
    return training(classify(compiled(model), images(size(128, 1), 224, False)), adamw(model))


@tuned
def tuned_timm_vit_inference() -> Step:
    import timm

    name = "vit_tiny_patch16_224" if SMALL else "vit_large_patch14_224"
    model = compiled(timm.create_model(name, depth=size(6, 1)).to(DEVICE, BF16).eval())
    x = images(size(192, 1), 224, False, BF16)
    return inference(lambda: model(x))


@tuned
def tuned_timm_convnext() -> Step:
    import timm

    model = timm.create_model("convnext_base", depths=(1, 1, 3, 1)).to(DEVICE).to(memory_format=torch.channels_last)
    x = images(size(128, 1), size(224, 32), True)
    return training(classify(compiled(model), x), adamw(model))


@tuned
def tuned_hf_llama() -> Step:
    model = llama(layers=4, width=2048)
    ids = tokens(size(32000, 64), size(8, 1), size(1024, 8))
    model.forward = compiled(model.forward)
    return training(language(model, ids), adamw(model))


@tuned
def tuned_hf_prefill() -> Step:
    model = llama(layers=4, width=2048).to(BF16).eval()
    ids = tokens(size(32000, 64), size(4, 1), size(4096, 8))
    model.model.forward = compiled(model.model.forward)
    return inference(lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))


@tuned
def tuned_hf_gpt2() -> Step:
    model = gpt2(size(50304, 64), layers=4)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.forward = compiled(model.forward)
    return training(language(model, tokens(size(50304, 64), size(16, 1), size(1024, 8))), adamw(model))


@tuned
def tuned_hf_bert() -> Step:
    model = bert(layers=4).eval()
    ids, labels = tokens(30000, size(64, 1), size(512, 8)), tokens(2, size(64, 1))
    model.forward = compiled(model.forward)
    return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


@tuned
def tuned_tv_resnet() -> Step:
    from torchvision.models import resnet18

    model = resnet18().to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return training(classify(compiled(model), images(size(256, 2), size(224, 32), True)), optimizer)


@tuned
def tuned_graphed_decode() -> Step:
    batch, at = size(256, 2), size(1023, 4)
    model = decoder(size(4096, 32), size(32, 4), size(8, 1), size(4, 1), batch, at + 1)
    ids = tokens(32000, batch, 1)
    token = captured(inference(lambda: model(ids, at)))
    return lambda: [token() for _ in range(4)]


@tuned
def tuned_products() -> Step:
    width = size(8192, 32)
    layers = [part for _ in range(3) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers).to(DEVICE, BF16)
    x = normal(size(8192, 8), width, dtype=BF16)
    loss = compiled(lambda: model(x).float().square().mean())
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-6, fused=True), autocast=False)


@tuned
def tuned_float8_products() -> Step:
    rows, width = size(8192, 16), size(8192, 32)
    one = torch.ones((), device=DEVICE)
    a = normal(rows, width).to(torch.float8_e4m3fn)
    weights = [normal(width, width).to(torch.float8_e4m3fn) for _ in range(4)]

    def forward() -> None:
        for w in weights:
            torch._scaled_mm(a, w.t(), scale_a=one, scale_b=one, out_dtype=BF16)

    return inference(forward)


@tuned
def tuned_attention() -> Step:
    shape = (size(4, 1), size(32, 2), size(8192, 16), size(128, 16))
    q, k, v = (normal(*shape, dtype=BF16).requires_grad_() for _ in range(3))
    grad = normal(*shape, dtype=BF16)

    def step() -> None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), grad)

    return step


@tuned
def tuned_elementwise() -> Step:
    x, y, z = (normal(size(2**28, 64), dtype=BF16) for _ in range(3))

    def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.gelu(a * 1.1 + b) * torch.sigmoid(c)

    fused = compiled(chain)
    return inference(lambda: [fused(x, y, z) for _ in range(4)])


@tuned
def tuned_fused_adam() -> Step:
    parameters = [nn.Parameter(normal(size(4096, 8), size(4096, 8))) for _ in range(size(36, 2))]
    for p in parameters:
        p.grad = torch.ones_like(p)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True).step


@tuned
def tuned_graphed_training() -> Step:
    width = size(8192, 32)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)).to(DEVICE, BF16)
    x, grad = normal(size(8192, 8), width, dtype=BF16), normal(size(8192, 8), width, dtype=BF16)
    weights = list(model.parameters())

    def step() -> None:
        torch.autograd.grad(model(x), weights, grad)

    return captured(step)


@tuned
def tuned_flex_window() -> Step:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, window = size(8192, 256), size(1024, 64)
    q, k, v = (normal(2, size(16, 2), length, size(128, 16), dtype=BF16) for _ in range(3))

    def near(b: Any, h: Any, at: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (at >= key) & (at - key < window)

    mask = create_block_mask(near, None, None, length, length, device=DEVICE)
    attend = compiled(flex_attention)
    return inference(lambda: [attend(q, k, v, block_mask=mask) for _ in range(4)])


@tuned
def tuned_convolutions() -> Step:
    width = size(256, 8)
    parts = [part for _ in range(4) for part in (nn.Conv2d(width, width, 3, padding=1, bias=False), nn.ReLU())]
    model = nn.Sequential(*parts).to(DEVICE, BF16).to(memory_format=torch.channels_last)
    x = normal(size(64, 2), width, size(64, 8), size(64, 8), dtype=BF16).contiguous(memory_format=torch.channels_last)
    loss = compiled(lambda: model(x).float().square().mean())
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-6, fused=True), autocast=False)


@tuned
def tuned_batched_experts() -> Step:
    experts, rows, width = size(16, 2), size(2048, 8), size(2048, 32)
    up = nn.Parameter(normal(experts, width, 2 * width, dtype=BF16) * 0.02)
    down = nn.Parameter(normal(experts, 2 * width, width, dtype=BF16) * 0.02)
    x = normal(experts, rows, width, dtype=BF16)

    def loss() -> torch.Tensor:
        return (F.relu(x @ up) @ down).float().square().mean()

    return training(compiled(loss), torch.optim.SGD([up, down], lr=1e-6, fused=True), autocast=False)
