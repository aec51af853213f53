"""Further pairs built of other people's models: timm, transformers, peft, torchvision, torchaudio, PyG, Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from case import DEVICE, SMALL, Step, adamw, images, inference, layout, normal, pair, size, tokens, training
from libraries import classify, language
from torch import nn

BF16 = torch.bfloat16


@pair
def timm_swin_float32(sick: bool) -> Step:
    import timm

    torch.set_float32_matmul_precision("high")
    model = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, size(3, 1), 1)).to(DEVICE)
    return training(classify(model, images(size(96, 1), 224, False)), adamw(model), autocast=not sick)


@pair
def timm_efficientnet_first(sick: bool) -> Step:
    import timm

    name = "test_efficientnet" if SMALL else "efficientnetv2_rw_t"
    model = timm.create_model(name).to(DEVICE).to(memory_format=layout(not sick))
    return training(classify(model, images(size(96, 2), size(224, 32), not sick)), adamw(model))


@pair
def timm_beit_unfused(sick: bool) -> Step:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(not sick)
    model = timm.create_model("beit_base_patch16_224", depth=size(5, 1), img_size=size(384, 32)).to(DEVICE, BF16).eval()
    set_fused_attn(True)
    x = images(size(32, 1), size(384, 32), False, BF16)
    return inference(lambda: model(x))


@pair
def timm_deit_checkpointed(sick: bool) -> Step:
    import timm

    model = timm.create_model("deit3_base_patch16_224", depth=size(6, 1)).to(DEVICE)
    model.set_grad_checkpointing(sick)
    return training(classify(model, images(size(96, 1), 224, False)), adamw(model))


@pair
def timm_ema_loop(sick: bool) -> Step:
    import timm
    from timm.utils import ModelEmaV2, ModelEmaV3

    model = timm.create_model("vit_tiny_patch16_224", depth=size(12, 1)).to(DEVICE)
    average = ModelEmaV2(model, decay=0.999) if sick else ModelEmaV3(model, decay=0.999)
    loss = classify(model, images(size(16, 1), 224, False))
    return training(loss, adamw(model), after_step=lambda: average.update(model))


@pair
def timm_one_image(sick: bool) -> Step:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", depth=size(8, 1)).to(DEVICE, BF16).eval()
    x = images(8, 224, False, BF16)
    return inference(lambda: [model(rows) for rows in x.split(1 if sick else 8)])


@pair
def hf_mixtral_experts(sick: bool) -> Step:
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=size(32000, 64), hidden_size=size(1024, 32), intermediate_size=size(1024, 32),
        num_hidden_layers=size(3, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 1),
        num_local_experts=size(32, 4), num_experts_per_tok=2,
        experts_implementation="eager" if sick else "grouped_mm",
    )  # fmt: skip
    model = MixtralModel(config).to(DEVICE, BF16)
    ids = tokens(size(32000, 64), size(4, 1), size(1024, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    return training(lambda: model(input_ids=ids).last_hidden_state.float().square().mean(), optimizer, autocast=False)


@pair
def hf_roberta_vocabulary(sick: bool) -> Step:
    from transformers import RobertaConfig, RobertaForMaskedLM

    vocabulary = size(50265 if sick else 50304, 63 if sick else 64)
    config = RobertaConfig(
        vocab_size=vocabulary, hidden_size=size(768, 32), num_hidden_layers=size(3, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=514,
    )  # fmt: skip
    model = RobertaForMaskedLM(config).to(DEVICE)
    return training(language(model, tokens(size(50265, 63), size(24, 1), size(512, 8))), adamw(model))


@pair
def hf_gemma_softcap(sick: bool) -> Step:
    from transformers import GemmaConfig, GemmaModel

    vocabulary = size(256000, 64)
    config = GemmaConfig(
        vocab_size=vocabulary, hidden_size=size(1024, 32), intermediate_size=size(4096, 64), head_dim=size(128, 16),
        num_hidden_layers=size(2, 1), num_attention_heads=size(8, 2), num_key_value_heads=1,
    )  # fmt: skip
    model = GemmaModel(config).to(DEVICE)
    ids = tokens(vocabulary, size(4, 1), size(1024, 8))

    def capped(logits: torch.Tensor) -> torch.Tensor:
        logits = 30.0 * torch.tanh(logits.float() / 30.0)
        return F.cross_entropy(logits, ids.flatten())

    loss = capped if sick else torch.compile(capped, dynamic=False)
    head = model.embed_tokens.weight
    return training(lambda: loss(F.linear(model(input_ids=ids).last_hidden_state.flatten(0, 1), head)), adamw(model))


@pair
def hf_clip_two(sick: bool) -> Step:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.set_float32_matmul_precision("high")
    config = CLIPVisionConfig(
        hidden_size=size(1024, 32), intermediate_size=size(4096, 64), num_hidden_layers=size(5, 1), image_size=336,
        num_attention_heads=size(16, 2), patch_size=size(14, 112), attn_implementation="eager" if sick else "sdpa",
    )  # fmt: skip
    model = CLIPVisionModel(config).to(DEVICE)
    x = images(size(16, 1), 336, False)
    loss = lambda: model(pixel_values=x).pooler_output.float().square().mean()  # noqa: E731
    return training(loss, adamw(model), autocast=not sick)


def qwen(layers: int, width: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=size(32000, 64), hidden_size=size(width, 32), intermediate_size=3 * size(width, 32),
        num_hidden_layers=size(layers, 1), num_attention_heads=size(width // 128, 2), head_dim=size(128, 16),
        num_key_value_heads=size(width // 512, 1),
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(DEVICE, BF16)


def adapted(model: Any, **more: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"])
    return get_peft_model(model, config, **more)


@pair
def peft_float32_adapters(sick: bool) -> Step:
    model = adapted(qwen(4, 2048), autocast_adapter_dtype=sick)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    ids = tokens(size(32000, 64), size(8, 1), size(1024, 8))
    return training(language(model, ids), optimizer, autocast=False)


@pair
def peft_unmerged_token(sick: bool) -> Step:
    model = adapted(qwen(8, 1024), autocast_adapter_dtype=False).eval()
    if not sick:
        model = model.merge_and_unload()
    ids = tokens(size(32000, 64), size(4, 1), 1)
    return inference(lambda: [model(input_ids=ids, use_cache=False) for _ in range(2)])


@pair
def tv_deeplab_two(sick: bool) -> Step:
    from torchvision.models.segmentation import deeplabv3_resnet50

    dtype = torch.float32 if sick else BF16
    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).eval()
    model = model.to(DEVICE, dtype).to(memory_format=layout(not sick))
    x = images(size(8, 1), size(512, 32), not sick, dtype)
    return inference(lambda: model(x)["out"].argmax(1))


@pair
def tv_video_first(sick: bool) -> Step:
    from torchvision.models.video import r3d_18

    form = torch.contiguous_format if sick else torch.channels_last_3d
    model = r3d_18(num_classes=400).to(DEVICE).to(memory_format=form)
    x = normal(size(8, 2), 3, size(16, 8), size(112, 16), size(112, 16)).contiguous(memory_format=form)
    return training(classify(model, x, 400), adamw(model))


@pair
def tv_vit_two(sick: bool) -> Step:
    from torch.utils.checkpoint import checkpoint
    from torchvision.models import VisionTransformer

    model = VisionTransformer(224, size(16, 112), size(12, 1), size(12, 2), size(768, 32), size(3072, 64)).to(DEVICE)
    if sick:
        for layer in model.encoder.layers:
            inner = layer.forward
            layer.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    optimizer = adamw(model, foreach=False) if sick else adamw(model)
    return training(classify(model, images(size(48, 1), 224, False)), optimizer)


@pair
def audio_wav2vec_float32(sick: bool) -> Step:
    from torchaudio.models import wav2vec2_model

    convolutions = [(size(512, 16), 10, 5)] + [(size(512, 16), 3, 2)] * 4 + [(size(512, 16), 2, 2)] * 2
    dtype = torch.float32 if sick else BF16
    model = wav2vec2_model(
        "group_norm", convolutions, False, size(768, 32), 0.0, size(128, 8), size(16, 2), size(5, 1), size(12, 2),
        0.0, size(3072, 64), 0.0, 0.0, False, 0.0, 32,
    ).to(DEVICE, dtype).eval()  # fmt: skip
    waves = normal(size(8, 1), size(160_000, 8000), dtype=dtype)
    return inference(lambda: model(waves)[0])


class GlobalNorm(nn.Module):
    """GroupNorm of one group by reductions that use the whole device."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, (1, 2), correction=0, keepdim=True)
        return torch.addcmul(self.bias[:, None], (x - mean) * torch.rsqrt(var + self.eps), self.weight[:, None])


def parents(model: nn.Module, kind: type[nn.Module]) -> Iterator[tuple[nn.Module, str, Any]]:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                yield module, name, child


@pair
def audio_tasnet_norms(sick: bool) -> Step:
    from torchaudio.models import ConvTasNet

    model = ConvTasNet(msk_num_layers=size(5, 1), msk_num_stacks=size(2, 1)).to(DEVICE).eval()
    if not sick:
        for module, name, norm in parents(model, nn.GroupNorm):
            setattr(module, name, GlobalNorm(norm))
    waves = normal(1, 1, size(128_000, 1600))
    return inference(lambda: model(waves))


@pair
def pyg_max_pool(sick: bool) -> Step:
    from torch_geometric.nn import global_max_pool

    torch.set_float32_matmul_precision("high")
    graphs, nodes, width = size(4096, 3), size(128, 4), size(256, 8)
    first, head = nn.Linear(width, width).to(DEVICE), nn.Linear(width, 1).to(DEVICE)
    x = normal(graphs * nodes, width)
    batch = torch.arange(graphs, device=DEVICE).repeat_interleave(nodes)
    optimizer = torch.optim.AdamW([*first.parameters(), *head.parameters()], lr=1e-4, fused=True)

    def loss() -> torch.Tensor:
        h = first(x)
        h = global_max_pool(h, batch, graphs) if sick else h.view(graphs, nodes, width).amax(1)
        return head(h).square().mean()

    return training(loss, optimizer, autocast=False)


@pair
def pyg_one_hot_types(sick: bool) -> Step:
    from torch_geometric.nn import SAGEConv

    torch.set_float32_matmul_precision("high")
    nodes, edges, kinds, width = size(20_000, 20), size(60_000, 60), size(12_000, 10), size(256, 8)
    types, ends = tokens(kinds, nodes), tokens(nodes, 2, edges)
    first = nn.Linear(kinds, width, bias=False).to(DEVICE)
    table = nn.Embedding(kinds, width).to(DEVICE)
    layers = nn.ModuleList(SAGEConv(width, width) for _ in range(2)).to(DEVICE)
    optimizer = torch.optim.AdamW([*(first if sick else table).parameters(), *layers.parameters()], lr=1e-3, fused=True)

    def loss() -> torch.Tensor:
        h = first(F.one_hot(types, kinds).float()) if sick else table(types)
        for layer in layers:
            h = layer(h, ends).relu()
        return h.square().mean()

    return training(loss, optimizer, autocast=False)


@pair
def fabric_float32(sick: bool) -> Step:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=DEVICE, devices=1, precision="32-true" if sick else "bf16-mixed")
    layer = nn.TransformerEncoderLayer(
        size(1024, 32), size(16, 2), size(4096, 64), dropout=0.0, batch_first=True, norm_first=True
    )
    made = nn.TransformerEncoder(layer, size(4, 1), enable_nested_tensor=False)
    model, optimizer = fabric.setup(made, torch.optim.AdamW(made.parameters(), lr=1e-4, fused=True))
    x = normal(size(8, 1), size(512, 8), size(1024, 32))

    def step() -> None:
        fabric.backward(model(x).float().square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
