"""Further programs with nothing to find: bfloat16, fused, compiled where that helps. Most are others' models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import DEVICE, SMALL, Step, adamw, captured, images, inference, normal, size, tokens, training, tuned
from parts import Layer, classify, decoder, deep_mlp, language, mean_square
from torch import nn
from tuned import compiled
from zoo import BF16, hf_roberta_compiled_dropout, timm_model, transformer


@tuned
def lean_timm_beit() -> Step:
    forward = compiled(timm_model("beitv2_large_patch16_224", depth=size(5, 1)).to(BF16).eval())
    x = images(size(192, 1), 224, False, BF16)
    return inference(lambda: forward(x))


@tuned
def lean_timm_deit3() -> Step:
    model = timm_model("deit3_large_patch16_224", depth=size(3, 1)).to(BF16)
    loss = classify(compiled(model), images(size(192, 1), 224, False, BF16))
    return training(loss, adamw(model), autocast=False)


@tuned
def lean_hf_stablelm() -> Step:
    model = transformer("StableLm", "ForCausalLM", 3, 2048, num_key_value_heads=size(32, 2)).to(BF16)
    model.forward = compiled(model.forward)
    ids = tokens(size(32000, 64), size(8, 1), size(1024, 8))
    return training(language(model, ids), adamw(model), autocast=False)


@tuned
def lean_hf_roberta() -> Step:
    return hf_roberta_compiled_dropout(False)


@tuned
def lean_hf_siglip() -> Step:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=size(1024, 32), intermediate_size=size(4096, 64), num_hidden_layers=size(5, 1),
        num_attention_heads=size(16, 2), image_size=size(256, 32), patch_size=16,
    )  # fmt: skip
    model = SiglipVisionModel(config).to(DEVICE, BF16).eval()
    x, forward = images(size(160, 1), size(256, 32), False, BF16), compiled(model.forward)
    return inference(lambda: forward(pixel_values=x).pooler_output)


@tuned
def lean_tv_vit() -> Step:
    from torchvision.models import VisionTransformer

    made = VisionTransformer(size(256, 32), 16, size(5, 1), size(16, 2), size(1024, 32), size(4096, 64))
    model, x = made.to(DEVICE, BF16).eval(), images(size(160, 1), size(256, 32), False, BF16)
    forward = compiled(model)
    return inference(lambda: forward(x))


@tuned
def lean_tv_wide_resnet() -> Step:
    from torchvision.models import resnet18, wide_resnet50_2

    model = (resnet18 if SMALL else wide_resnet50_2)().to(DEVICE, BF16).to(memory_format=torch.channels_last).eval()
    forward, x = compiled(model), images(size(256, 1), size(224, 32), True, BF16)
    return inference(lambda: forward(x))


@tuned
def lean_causal_prefill() -> Step:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    model = nn.Sequential(*[Layer(size(5120, 32), size(40, 2), attend) for _ in range(size(3, 1))]).to(DEVICE, BF16)
    forward, x = compiled(model.eval()), normal(size(4, 1), size(4096, 16), size(5120, 32), dtype=BF16)
    return inference(lambda: forward(x))


@tuned
def lean_graphed_decode() -> Step:
    batch, at = size(96, 2), size(1023, 4)
    model = decoder(size(5120, 32), size(40, 4), size(8, 1), size(3, 1), batch, at + 1)
    ids = tokens(32000, batch, 1)
    token = captured(inference(lambda: model(ids, at)))
    return lambda: [token() for _ in range(2)]


@tuned
def lean_graphed_mlp() -> Step:
    model = deep_mlp(size(6, 1), size(4096, 16)).to(BF16)
    more = {"fused": True} if DEVICE == "cpu" else {"fused": True, "capturable": True}
    loss = compiled(mean_square(model, normal(size(12288, 8), size(4096, 16), dtype=BF16)))
    return captured(training(loss, adamw(model, **more), autocast=False))


@tuned
def lean_upsampler() -> Step:
    width = size(384, 8)
    parts = [part for _ in range(4) for part in (nn.Conv2d(width, width, 3, padding=1, bias=False), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, width, 1), *parts, nn.Conv2d(width, 16, 1), nn.PixelShuffle(4))
    model = model.to(DEVICE, BF16).to(memory_format=torch.channels_last)
    x = images(size(48, 1), size(96, 8), True, BF16)
    loss = compiled(mean_square(model, x))
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-6, fused=True), autocast=False)
