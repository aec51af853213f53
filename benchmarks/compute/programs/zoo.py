"""Further pairs built of other people's models: timm, transformers, peft, torchvision, torchaudio, PyG, Lightning."""

from __future__ import annotations

from typing import Any

import torch
from case import DEVICE, SMALL, Step, adamw, images, inference, layout, normal, pair, size, tokens, training
from libraries import classify, language
from torch import nn

BF16 = torch.bfloat16


@pair
def timm_xcit_float32(sick: bool) -> Step:
    import timm

    torch.set_float32_matmul_precision("high")
    model = timm.create_model("xcit_small_12_p16_224", depth=size(6, 1), cls_attn_layers=1).to(DEVICE)
    return training(classify(model, images(size(96, 2), 224, False)), adamw(model), autocast=not sick)


@pair
def timm_regnet_first(sick: bool) -> Step:
    import timm

    name = "test_resnet" if SMALL else "regnety_032"
    model = timm.create_model(name).to(DEVICE).to(memory_format=layout(not sick))
    return training(classify(model, images(size(96, 2), size(224, 32), not sick)), adamw(model))


@pair
def timm_eva_unfused(sick: bool) -> Step:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(not sick)
    model = timm.create_model("eva02_base_patch14_224", depth=size(6, 1)).to(DEVICE, BF16).eval()
    set_fused_attn(True)
    x = images(size(192, 1), 224, False, BF16)
    return inference(lambda: model(x))


@pair
def timm_lion_loop(sick: bool) -> Step:
    import timm
    from timm.optim import Lion

    model = timm.create_model("vit_small_patch16_224", depth=size(8, 1)).to(DEVICE)
    optimizer = Lion(model.parameters(), lr=1e-5, foreach=not sick)
    return training(classify(model, images(size(48, 1), 224, False)), optimizer)


@pair
def timm_cait_checkpointed(sick: bool) -> Step:
    import timm

    model = timm.create_model("cait_s24_224", depth=size(6, 1)).to(DEVICE)
    model.set_grad_checkpointing(sick)
    return training(classify(model, images(size(96, 1), 224, False)), adamw(model))


@pair
def timm_pooled_images(sick: bool) -> Step:
    import timm

    name = "test_resnet" if SMALL else "resnet34"
    model = timm.create_model(name, num_classes=0).to(DEVICE, BF16).to(memory_format=torch.channels_last).eval()
    x = images(16, size(224, 32), True, BF16)
    return inference(lambda: [model(rows) for rows in x.split(2 if sick else 16)])


@pair
def hf_neox_eager(sick: bool) -> Step:
    from transformers import GPTNeoXConfig, GPTNeoXModel

    config = GPTNeoXConfig(
        vocab_size=size(32000, 64), hidden_size=size(1536, 32), intermediate_size=size(6144, 64),
        num_hidden_layers=size(3, 1), num_attention_heads=size(12, 2), max_position_embeddings=2048,
        attn_implementation="eager" if sick else "sdpa",
    )  # fmt: skip
    model = GPTNeoXModel(config).to(DEVICE)
    ids = tokens(size(32000, 64), size(8, 1), size(1024, 8))
    return training(lambda: model(input_ids=ids).last_hidden_state.float().square().mean(), adamw(model))


@pair
def hf_llama_pad_token(sick: bool) -> Step:
    model = qwen(3, 1536, size(32001 if sick else 32064, 63 if sick else 64))
    ids = tokens(size(32001, 63), size(8, 1), size(1024, 8))
    return training(language(model, ids), adamw(model), autocast=False)


@pair
def hf_electra_checkpointing(sick: bool) -> Step:
    from transformers import ElectraConfig, ElectraForMaskedLM

    config = ElectraConfig(
        vocab_size=size(30528, 64), embedding_size=size(768, 32), hidden_size=size(768, 32),
        num_hidden_layers=size(6, 1), num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
    )  # fmt: skip
    model = ElectraForMaskedLM(config).to(DEVICE)
    if sick:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return training(language(model, tokens(size(30528, 64), size(16, 1), size(512, 8))), adamw(model))


@pair
def hf_dinov2_float32(sick: bool) -> Step:
    from transformers import Dinov2Config, Dinov2Model

    torch.set_float32_matmul_precision("highest" if sick else "high")
    config = Dinov2Config(
        hidden_size=size(768, 32), num_hidden_layers=size(4, 1), num_attention_heads=size(12, 2), image_size=224,
        patch_size=size(14, 112),
    )  # fmt: skip
    model = Dinov2Model(config).to(DEVICE).eval()
    x = images(size(64, 1), 224, False)
    return inference(lambda: model(pixel_values=x).pooler_output)


@pair
def hf_olmoe_experts(sick: bool) -> Step:
    from transformers import OlmoeConfig, OlmoeModel

    config = OlmoeConfig(
        vocab_size=size(32000, 64), hidden_size=size(1024, 32), intermediate_size=size(512, 32),
        num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2),
        num_experts=size(48, 4), num_experts_per_tok=size(4, 2),
        experts_implementation="eager" if sick else "grouped_mm",
    )  # fmt: skip
    model = OlmoeModel(config).to(DEVICE, BF16).eval()
    ids = tokens(size(32000, 64), size(8, 1), size(2048, 16))
    return inference(lambda: model(input_ids=ids, use_cache=False).last_hidden_state)


def qwen(layers: int, width: int, vocabulary: int = 0, **more: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary or size(32000, 64), hidden_size=size(width, 32), intermediate_size=3 * size(width, 32),
        num_hidden_layers=size(layers, 1), num_attention_heads=size(width // 128, 2), head_dim=size(128, 16),
        num_key_value_heads=size(width // 512, 1), **more,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(DEVICE, BF16)


@pair
def hf_prefill_own_mask(sick: bool) -> Step:
    model, length = qwen(4, 2048).model.eval(), size(4096, 16)
    ids = tokens(size(32000, 64), 1, length)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=DEVICE).tril()
    return inference(lambda: model(input_ids=ids, attention_mask=mask if sick else None, use_cache=False))


@pair
def hf_prompts_singly(sick: bool) -> Step:
    model = qwen(6, 2048).model.eval()
    ids = tokens(size(32000, 64), 8, size(128, 8))
    return inference(lambda: [model(input_ids=rows, use_cache=False) for rows in ids.split(1 if sick else 8)])


@pair
def hf_falcon_float32_loop_two(sick: bool) -> Step:
    from transformers import FalconConfig, FalconModel

    torch.set_float32_matmul_precision("highest" if sick else "high")
    config = FalconConfig(
        vocab_size=size(32000, 64), hidden_size=size(1024, 32), num_hidden_layers=size(4, 1),
        num_attention_heads=size(16, 2),
    )  # fmt: skip
    model = FalconModel(config).to(DEVICE)
    ids = tokens(size(32000, 64), size(2, 1), size(512, 8))
    optimizer = adamw(model, **({"foreach": False} if sick else {"fused": True}))
    loss = lambda: model(input_ids=ids, use_cache=False).last_hidden_state.square().mean()  # noqa: E731
    return training(loss, optimizer, autocast=False)


@pair
def peft_checkpointed(sick: bool) -> Step:
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(qwen(5, 2048), LoraConfig(r=16, target_modules=targets), autocast_adapter_dtype=False)
    if sick:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    return training(language(model, tokens(size(32000, 64), size(4, 1), size(1024, 8))), optimizer, autocast=False)


@pair
def tv_densenet_first(sick: bool) -> Step:
    from torchvision.models import DenseNet

    blocks = (1, 1) if SMALL else (6, 12, 24, 16)
    model = DenseNet(32, blocks, 64).to(DEVICE).to(memory_format=layout(not sick))
    return training(classify(model, images(size(64, 2), size(224, 64), not sick)), adamw(model))


@pair
def tv_mvit_float32(sick: bool) -> Step:
    from torchvision.models.video import mvit_v1_b

    torch.set_float32_matmul_precision("high")
    model = mvit_v1_b().to(DEVICE, torch.float32 if sick else BF16).eval()
    x = normal(size(4, 1), 3, 16, 224, 224, dtype=torch.float32 if sick else BF16)
    return inference(lambda: model(x))


@pair
def tv_wide_resnet_checkpointed_first_two(sick: bool) -> Step:
    from torch.utils.checkpoint import checkpoint
    from torchvision.models import resnet18, wide_resnet50_2

    model = (resnet18 if SMALL else wide_resnet50_2)().to(DEVICE).to(memory_format=layout(not sick))
    if sick:
        for part in (model.layer1, model.layer2, model.layer3, model.layer4):
            plain = part.forward
            part.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)
    return training(classify(model, images(size(64, 2), size(224, 32), not sick)), adamw(model))


@pair
def tv_fcn_first_inference(sick: bool) -> Step:
    from torchvision.models.segmentation import fcn_resnet50

    model = fcn_resnet50(weights=None, weights_backbone=None).to(DEVICE, BF16).eval()
    model = model.to(memory_format=layout(not sick))
    x = images(size(8, 1), size(512, 64), not sick, BF16)
    return inference(lambda: model(x)["out"])


@pair
def audio_resample_float64(sick: bool) -> Step:
    from torchaudio.transforms import Resample

    change = Resample(44_100, 16_000, dtype=torch.float64 if sick else torch.float32).to(DEVICE)
    waves = normal(size(64, 1), size(441_000, 4410))
    encode = nn.Sequential(nn.Conv1d(1, 64, 16, stride=8), nn.GELU(), nn.Conv1d(64, 64, 8, stride=4)).to(DEVICE)
    return inference(lambda: encode(change(waves.double() if sick else waves).float()[:, None]))


@pair
def audio_masks_per_wave(sick: bool) -> Step:
    from torchaudio.transforms import FrequencyMasking, TimeMasking

    batch, frames = size(96, 3), size(800, 32)
    x = normal(batch, 1, 80, frames)
    apart = [FrequencyMasking(15, iid_masks=not sick), TimeMasking(50, iid_masks=not sick)]
    model = nn.Sequential(nn.Linear(80, size(1024, 16)), nn.GELU(), nn.Linear(size(1024, 16), 256)).to(DEVICE)

    def masked(waves: torch.Tensor) -> torch.Tensor:
        for one in apart:
            waves = one(waves)
        return waves

    def loss() -> torch.Tensor:
        y = torch.stack([masked(one) for one in x]) if sick else masked(x)
        return model(y.squeeze(1).transpose(1, 2)).float().square().mean()

    return training(loss, adamw(model))


@pair
def audio_emformer_float32(sick: bool) -> Step:
    from torchaudio.models import Emformer

    torch.set_float32_matmul_precision("highest" if sick else "high")
    model = Emformer(size(512, 16), size(8, 2), size(2048, 32), size(8, 1), 16, left_context_length=32).to(DEVICE)
    x, lengths = normal(size(48, 2), size(512, 32), size(512, 16)), torch.full((size(48, 2),), size(512, 32))
    lengths = lengths.to(DEVICE)
    return training(lambda: model(x, lengths)[0].square().mean(), adamw(model), autocast=False)


@pair
def pyg_gin_scatter(sick: bool) -> Step:
    from torch_geometric.nn import GINConv

    torch.set_float32_matmul_precision("high")
    nodes, edges, width = size(60_000, 20), size(900_000, 60), size(256, 8)
    ends = tokens(nodes, 2, edges)
    graph: torch.Tensor = ends
    if not sick:
        values = torch.ones(edges, device=DEVICE)
        graph = torch.sparse_coo_tensor(ends.flip(0), values, (nodes, nodes)).coalesce().to_sparse_csr()
    layers = [GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))) for _ in range(3)]
    stack = nn.ModuleList(layers).to(DEVICE)
    x = normal(nodes, width)

    def forward() -> torch.Tensor:
        h = x
        for layer in stack:
            h = layer(h, graph).relu() * 0.01
        return h

    return inference(forward)


@pair
def pyg_mean_pool(sick: bool) -> Step:
    from torch_geometric.nn import global_mean_pool

    torch.set_float32_matmul_precision("high")
    graphs, nodes, width = size(8192, 3), size(64, 4), size(192, 8)
    body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(DEVICE)
    x = normal(graphs * nodes, width)
    batch = torch.arange(graphs, device=DEVICE).repeat_interleave(nodes)

    def loss() -> torch.Tensor:
        h = body(x)
        return (global_mean_pool(h, batch, graphs) if sick else h.view(graphs, nodes, width).mean(1)).square().mean()

    return training(loss, adamw(body), autocast=False)


@pair
def fabric_double(sick: bool) -> Step:
    from lightning.fabric import Fabric

    torch.set_float32_matmul_precision("high")
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="64-true" if sick else "32-true")
    width = size(1024, 16)
    made = nn.Sequential(*[part for _ in range(size(4, 1)) for part in (nn.Linear(width, width), nn.Tanh())])
    model, optimizer = fabric.setup(made, torch.optim.Adam(made.parameters(), lr=1e-4, fused=True))
    x = normal(size(4096, 8), width, dtype=torch.float64 if sick else torch.float32)

    def step() -> None:
        fabric.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair
def lightning_clip_by_value(sick: bool) -> Step:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed")
    width = size(512, 16)
    made = nn.Sequential(*[p for _ in range(size(40, 2)) for p in (nn.Linear(width, width), nn.LayerNorm(width))])
    model, optimizer = fabric.setup(made, torch.optim.AdamW(made.parameters(), lr=1e-4, fused=True))
    x = normal(size(8192, 8), width)

    def step() -> None:
        fabric.backward(model(x).float().square().mean())
        gradients = [p.grad for p in model.parameters()]
        if sick:
            for grad in gradients:
                grad.nan_to_num_(0.0)
                grad.clamp_(-1.0, 1.0)
        else:
            torch._foreach_clamp_min_(gradients, -1.0)
            torch._foreach_clamp_max_(gradients, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair
def hf_reward_logprobs(sick: bool) -> Step:
    vocabulary = size(64000, 64)
    model = qwen(2, 1536, vocabulary)
    ids = tokens(vocabulary, size(4, 1), size(1024, 8))

    def chosen(logits: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), -1).gather(-1, ids[..., None]).squeeze(-1)

    likely = chosen if sick else torch.compile(chosen, dynamic=False)
    loss = lambda: -likely(model(input_ids=ids, use_cache=False).logits).mean()  # noqa: E731
    return training(loss, torch.optim.SGD(model.parameters(), lr=1e-4, fused=True), autocast=False)
