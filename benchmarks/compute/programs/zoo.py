"""Further pairs of training: others' models (timm, transformers, torchvision, Lightning), and own loops."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from case import DEVICE, SMALL, Step, adamw, images, layout, normal, pair, size, tokens, training
from parts import classify, deep_mlp, mean_square, stack
from torch import nn

BF16 = torch.bfloat16


def timm_model(name: str, tiny: str = "", **more: Any) -> Any:
    import timm

    return timm.create_model(tiny if SMALL and tiny else name, **({} if SMALL and tiny else more)).to(DEVICE)


def transformer(name: str, task: str, layers: int, width: int, vocabulary: int = 32000, **more: Any) -> Any:
    """A model of transformers by the stem of its classes, with heads of 64."""
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=size(vocabulary, 64), hidden_size=size(width, 32), intermediate_size=size(4 * width, 64),
        num_hidden_layers=size(layers, 1), num_attention_heads=size(width // 64, 2), pad_token_id=0, bos_token_id=1,
        eos_token_id=2, **more,
    )  # fmt: skip
    return getattr(transformers, f"{name}{task}")(config).to(DEVICE)


def hidden_square(model: Any, **given: Any) -> Any:
    return lambda: model(**given).last_hidden_state.float().square().mean()


@pair
def timm_davit_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = timm_model("davit_tiny", depths=(1, 1, size(4, 1), 1))
    return training(classify(model, images(size(96, 1), size(224, 64), False)), adamw(model), autocast=not sick)


@pair
def timm_dla_first(sick: bool) -> Step:
    model = timm_model("dla60", "test_resnet").to(memory_format=layout(not sick))
    return training(classify(model, images(size(128, 2), size(224, 32), not sick)), adamw(model))


@pair
def timm_deit3_unfused(sick: bool) -> Step:
    from timm.layers import set_fused_attn

    set_fused_attn(not sick)
    model = timm_model("deit3_small_patch16_384", depth=size(6, 1))
    set_fused_attn(True)
    return training(classify(model, images(size(32, 1), 384, False)), adamw(model))


@pair
def timm_adan_loop(sick: bool) -> Step:
    from timm.optim import Adan

    model = timm_model("flexivit_base", depth=size(6, 1))
    optimizer = Adan(model.parameters(), lr=1e-5, foreach=not sick)
    return training(classify(model, images(size(96, 1), 240, False)), optimizer)


@pair
def timm_xception_first_loop_two(sick: bool) -> Step:
    model = timm_model("xception41", "test_resnet").to(memory_format=layout(not sick))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9, foreach=not sick)
    return training(classify(model, images(size(64, 2), size(299, 32), not sick)), optimizer)


@pair
def tv_inception_first(sick: bool) -> Step:
    from torchvision.models import inception_v3, squeezenet1_1

    model = squeezenet1_1() if SMALL else inception_v3(aux_logits=False, init_weights=False)
    model = model.to(DEVICE).to(memory_format=layout(not sick))
    return training(classify(model, images(size(128, 2), size(299, 64), not sick)), adamw(model))


@pair
def tv_swin_v2_products(sick: bool) -> Step:
    from torchvision.models import SwinTransformer
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    torch.set_float32_matmul_precision("highest" if sick else "high")
    depths = [1, 1] if SMALL else [1, 1, 3, 1]
    made = SwinTransformer(
        [4, 4], size(128, 16), depths, [4 * 2**i for i in range(len(depths))], [8, 8],
        block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2,
    )  # fmt: skip
    model = made.to(DEVICE)
    return training(classify(model, images(size(48, 1), size(256, 32), False)), adamw(model), autocast=False)


@pair
def tv_images_augmented_singly(sick: bool) -> Step:
    from torchvision.models import resnet18
    from torchvision.transforms.v2 import functional as change

    model = resnet18().to(DEVICE).to(memory_format=torch.channels_last)
    x, y = normal(size(64, 3), 3, size(224, 32), size(224, 32)).sigmoid(), tokens(1000, size(64, 3))

    def augmented(some: torch.Tensor) -> torch.Tensor:
        some = change.adjust_contrast(change.adjust_brightness(change.horizontal_flip(some), 1.1), 0.9)
        return change.normalize(some, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def loss() -> torch.Tensor:
        batch = torch.stack([augmented(one) for one in x]) if sick else augmented(x)
        return F.cross_entropy(model(batch.contiguous(memory_format=torch.channels_last)), y)

    return training(loss, adamw(model))


@pair
def hf_bart_checkpointing(sick: bool) -> Step:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=size(32000, 64), d_model=size(1024, 32), encoder_layers=size(4, 1), decoder_layers=size(4, 1),
        encoder_attention_heads=size(16, 2), decoder_attention_heads=size(16, 2), encoder_ffn_dim=size(4096, 64),
        decoder_ffn_dim=size(4096, 64), use_cache=False,
    )  # fmt: skip
    model = BartModel(config).to(DEVICE)
    if sick:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    ids = tokens(size(32000, 64), size(16, 1), size(512, 8))
    return training(hidden_square(model, input_ids=ids, decoder_input_ids=ids), adamw(model))


@pair
def hf_biogpt_eager_float32_two(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = transformer("BioGpt", "Model", 3, 1024, attn_implementation="eager" if sick else "sdpa", use_cache=False)
    ids = tokens(size(32000, 64), size(4, 1), size(1024, 8))
    return training(hidden_square(model, input_ids=ids), adamw(model), autocast=not sick)


@pair
def hf_roberta_mask_of_zeros(sick: bool) -> Step:
    batch, length = size(8, 1), size(1024, 8)
    model = transformer("XLMRoberta", "Model", 5, 768, max_position_embeddings=2048)
    ids = 3 + tokens(size(31000, 60), batch, length)
    mask = torch.zeros(batch, 1, length, length, device=DEVICE, dtype=BF16) if sick else None
    return training(hidden_square(model, input_ids=ids, attention_mask=mask), adamw(model))


@pair
def hf_roberta_compiled_dropout(sick: bool) -> Step:
    """The compiler takes SDPA with transformers' mask and dropout apart; of whole texts the mask hides nothing."""
    from transformers import AttentionInterface

    def unmasked(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        dropout = more.get("dropout", 0.0) if module.training else 0.0
        made = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=more.get("scaling"))
        return made.transpose(1, 2).contiguous(), None

    AttentionInterface.register("unmasked", unmasked)  # transformers makes no mask for what it does not know
    way = "sdpa" if sick else "unmasked"
    length = size(512, 8)
    model = transformer("XLMRoberta", "Model", 4, 1024, max_position_embeddings=1024, attn_implementation=way).to(BF16)
    model.forward = torch.compile(model.forward, dynamic=False)
    ids = 3 + tokens(size(31000, 60), size(32, 1), length)
    return training(hidden_square(model, input_ids=ids), adamw(model), autocast=False)


@pair
def fabric_micro_batches(sick: bool) -> Step:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed")
    made = stack(size(6, 1), size(2048, 32), size(16, 2))
    model, optimizer = fabric.setup(made, torch.optim.AdamW(made.parameters(), lr=1e-4, fused=True))
    x = normal(8, size(1024, 8), size(2048, 32))

    def step() -> None:
        for part in x.split(1 if sick else 8):
            fabric.backward(model(part).float().square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair
def features_1177(sick: bool) -> Step:
    features, width = size(1177, 17), size(4096, 32)
    x = normal(size(24576, 8), features)
    x = x if sick else F.pad(x, (0, -features % 8))
    model = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, size(1024, 8))).to(DEVICE)
    return training(mean_square(model, x), adamw(model))


@pair
def replayed_by_argsort(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    held, picked, width = size(3_000_000, 300), size(32768, 8), size(64, 8)
    memory = normal(held, width)
    model = nn.Sequential(nn.Linear(width, size(512, 16)), deep_mlp(3, size(512, 16))).to(DEVICE)

    def loss() -> torch.Tensor:
        if sick:
            chosen = torch.rand(held, device=DEVICE).argsort()[:picked]
        else:
            chosen = torch.randint(0, held, (picked,), device=DEVICE)
        return model(memory[chosen]).square().mean()

    return training(loss, adamw(model), autocast=False)


@pair
def rotary_through_float32(sick: bool) -> Step:
    length, depth = size(2048, 8), size(128, 16)
    angles = torch.outer(torch.arange(length, device=DEVICE), 1e4 ** -torch.linspace(0, 1, depth // 2, device=DEVICE))
    cos, sin = (f(angles).to(torch.float32 if sick else BF16) for f in (torch.cos, torch.sin))

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = (x.float() if sick else x).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(BF16)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)

    model = stack(size(4, 1), size(2048, 32), size(2048, 32) // depth, attend).to(BF16)
    x = normal(size(4, 1), length, size(2048, 32), dtype=BF16)
    return training(mean_square(model, x), adamw(model), autocast=False)


class NormByHand(nn.Module):
    def __init__(self, width: int, sick: bool) -> None:
        super().__init__()
        self.weight, self.sick = nn.Parameter(torch.ones(width)), sick

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sick:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


@pair
def rms_norm_by_hand(sick: bool) -> Step:
    width = size(3072, 16)
    parts = [part for _ in range(size(5, 1)) for part in (NormByHand(width, sick), nn.Linear(width, width))]
    model = nn.Sequential(*parts).to(DEVICE, BF16)
    return training(mean_square(model, normal(size(16384, 8), width, dtype=BF16)), adamw(model), autocast=False)


@pair
def contrastive_logits(sick: bool) -> Step:
    rows, width = size(16384, 8), size(768, 16)
    towers = nn.ModuleList(deep_mlp(size(4, 1), width) for _ in range(2))
    x, y = normal(2, rows, width), torch.arange(rows, device=DEVICE)

    def judged(logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float() * 14.3
        return F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)

    loss = judged if sick else torch.compile(judged, dynamic=False)
    return training(lambda: loss(F.normalize(towers[0](x[0])) @ F.normalize(towers[1](x[1])).T), adamw(towers))


@pair
def users_and_items_dense(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width = size(3_000_000, 200), size(64, 8)
    tables = nn.ModuleList(nn.Embedding(rows, width, sparse=not sick) for _ in range(2)).to(DEVICE)
    head = deep_mlp(4, size(1024, 8))
    into = nn.Linear(2 * width, size(1024, 8)).to(DEVICE)
    ids = tokens(rows, 2, size(16384, 8))
    first = torch.optim.SGD(tables.parameters(), lr=1e-3)
    second = adamw(nn.ModuleList([head, into]))

    def step() -> None:
        x = torch.cat([table(some) for table, some in zip(tables, ids, strict=True)], -1)
        head(into(x)).square().mean().backward()
        for one in (first, second):
            one.step()
            one.zero_grad(set_to_none=True)

    return step


@pair
def losses_by_slices(sick: bool) -> Step:
    times, width, classes = size(48, 3), size(1024, 16), size(512, 8)
    model = nn.Sequential(stack(size(4, 1), width, size(16, 2)), nn.Linear(width, classes)).to(DEVICE)
    x, y = normal(size(128, 2), times, width), tokens(classes, size(128, 2), times)

    def loss() -> torch.Tensor:
        logits = model(x)
        if not sick:
            return F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return torch.stack([F.cross_entropy(logits[:, t], y[:, t]) for t in range(times)]).mean()

    return training(loss, adamw(model))


@pair
def loss_in_float64(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    width, out = size(512, 16), size(2048, 16)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out)).to(DEVICE)
    x, y = normal(size(16384, 8), width), normal(size(16384, 8), out)

    def loss() -> torch.Tensor:
        got, wanted = (one.double() if sick else one for one in (model(x), y))
        return F.smooth_l1_loss(got, wanted)

    return training(loss, adamw(model), autocast=False)
