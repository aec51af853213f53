"""Pairs built of other people's models: timm, transformers, torchvision, torchaudio, PyTorch Geometric, Lightning.

Every model is made from its configuration with random weights. Libraries are imported where they are used: one that is
missing fails only its own pairs.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from case import DEVICE, SMALL, Step, adamw, images, inference, layout, normal, pair, size, tokens, training
from torch import nn

BF16 = torch.bfloat16


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


@pair
def timm_vit_unfused(sick: bool) -> Step:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(not sick)
    name = "vit_tiny_patch16_224" if SMALL else "vit_base_patch16_224"
    model = timm.create_model(name, depth=size(8, 1), img_size=size(384, 32)).to(DEVICE)
    set_fused_attn(True)
    return training(classify(model, images(size(24, 1), size(384, 32), False)), adamw(model))


@pair
def timm_convnext_first(sick: bool) -> Step:
    import timm

    model = timm.create_model("convnext_tiny", depths=(1, 1, 2, 1)).to(DEVICE).to(memory_format=layout(not sick))
    return training(classify(model, images(size(64, 1), size(224, 32), not sick)), adamw(model))


@pair
def timm_mixer_two(sick: bool) -> Step:
    import timm

    torch.set_float32_matmul_precision("high")
    model = timm.create_model("mixer_s16_224" if SMALL else "mixer_b16_224").to(DEVICE)
    optimizer = adamw(model, foreach=False) if sick else adamw(model)
    return training(classify(model, images(size(48, 1), 224, False)), optimizer, autocast=not sick)


@pair
def hf_llama_eager(sick: bool) -> Step:
    model = llama(attention="eager" if sick else "sdpa")
    return training(language(model, tokens(size(32000, 64), size(4, 1), size(2048, 8))), adamw(model))


@pair
def hf_gpt2_vocabulary(sick: bool) -> Step:
    model = gpt2(size(50257 if sick else 50304, 63 if sick else 64))
    return training(language(model, tokens(size(50257, 63), size(8, 1), size(1024, 8))), adamw(model))


@pair
def hf_bert_float32(sick: bool) -> Step:
    model = bert()
    ids, labels = tokens(30000, size(16, 1), size(512, 8)), tokens(2, size(16, 1))
    return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model), autocast=not sick)


@pair
def hf_llama_checkpointing(sick: bool) -> Step:
    model = llama(width=2048, layers=6)
    if sick:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    return training(language(model, tokens(size(32000, 64), size(8, 1), size(1024, 8))), adamw(model))


@pair
def hf_llama_logits(sick: bool) -> Step:
    vocabulary = size(128256, 64)
    model = llama(vocabulary=128256, layers=2)
    ids = tokens(vocabulary, size(8, 1), size(1024, 8))
    if sick:
        return training(language(model, ids), adamw(model))
    loss = torch.compile(lambda z, y: F.cross_entropy(z.float(), y), dynamic=False)
    shifted = F.pad(ids[:, 1:], (0, 1), value=-100).flatten()
    return training(lambda: loss(model(input_ids=ids).logits.flatten(0, 1), shifted), adamw(model))


@pair
def hf_llama_prefill(sick: bool) -> Step:
    model = llama(attention="eager" if sick else "sdpa").to(BF16).eval()
    ids = tokens(size(32000, 64), size(2, 1), size(4096, 8))
    return inference(lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))


@pair
def hf_dynamic_cache(sick: bool) -> Step:
    from transformers import DynamicCache, StaticCache

    model = llama(width=2048, grouped=False).to(BF16).eval()
    batch, filled, new = size(16, 2), size(1024, 4), size(8, 2)
    prompt, token = tokens(size(32000, 64), batch, filled), tokens(size(32000, 64), batch, 1)

    def generate(cache: Any) -> None:
        for i in range(new):
            at = torch.arange(filled + i, filled + i + 1, device=DEVICE)
            model(input_ids=token, past_key_values=cache, cache_position=at, position_ids=at[None])

    with torch.no_grad():
        if not sick:
            kept = StaticCache(config=model.config, max_cache_len=filled + new)
            model(input_ids=prompt, past_key_values=kept, logits_to_keep=1)

    def step() -> None:
        if sick:
            cache = DynamicCache(config=model.config)
            for layer in range(model.config.num_hidden_layers):
                cache.update(*past[layer], layer)
            generate(cache)
        else:
            for layer in kept.layers:  # the same places are written again, as after each prompt
                layer.cumulative_length.fill_(filled)
            generate(kept)

    config = model.config
    shape = (batch, config.num_key_value_heads, filled, config.hidden_size // config.num_attention_heads)
    past = [(normal(*shape, dtype=BF16), normal(*shape, dtype=BF16)) for _ in range(config.num_hidden_layers)]
    return inference(step)


@pair
def hf_bert_one_request(sick: bool) -> Step:
    model = bert(layers=4).to(BF16).eval()
    ids = tokens(30000, 16, size(128, 8))
    return inference(lambda: [model(input_ids=rows) for rows in ids.split(1 if sick else 16)])


@pair
def hf_whisper_float32(sick: bool) -> Step:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=size(768, 32),
        encoder_layers=size(4, 1),
        encoder_attention_heads=size(12, 2),
        encoder_ffn_dim=size(3072, 64),
        max_source_positions=size(1500, 16),
    )
    dtype = torch.float32 if sick else BF16
    model = WhisperEncoder(config).to(DEVICE, dtype).eval()
    x = normal(size(4, 1), config.num_mel_bins, size(3000, 32), dtype=dtype)
    return inference(lambda: model(x))


@pair
def tv_resnet_two(sick: bool) -> Step:
    from torchvision.models import resnet18, resnet50

    model = (resnet18 if SMALL else resnet50)().to(DEVICE).to(memory_format=layout(not sick))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return training(classify(model, images(size(64, 2), size(224, 32), not sick)), optimizer, autocast=not sick)


@pair
def tv_mobilenet_first(sick: bool) -> Step:
    from torchvision.models import mobilenet_v2

    model = mobilenet_v2().to(DEVICE).to(memory_format=layout(not sick))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return training(classify(model, images(size(96, 2), size(224, 32), not sick)), optimizer)


@pair
def tv_resnet_sgd_loop(sick: bool) -> Step:
    from torchvision.models import resnet18, resnet50

    model = (resnet18 if SMALL else resnet50)().to(DEVICE).to(memory_format=torch.channels_last)
    how: dict[str, Any] = {"foreach": False} if sick else {"fused": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, **how)
    return training(classify(model, images(size(16, 2), size(160, 32), True)), optimizer)


@pair
def tv_resnet_inference_first(sick: bool) -> Step:
    from torchvision.models import resnet18, resnet50

    model = (resnet18 if SMALL else resnet50)().to(DEVICE, BF16).to(memory_format=layout(not sick)).eval()
    x = images(size(128, 1), size(224, 32), not sick, BF16)
    return inference(lambda: model(x))


@pair
def tv_frozen_norms(sick: bool) -> Step:
    from torch.nn.utils import fuse_conv_bn_eval
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
    from torchvision.ops import FrozenBatchNorm2d

    block, depths = (BasicBlock, [1, 1, 1, 1]) if SMALL else (Bottleneck, [3, 4, 6, 3])
    model = ResNet(block, depths, norm_layer=FrozenBatchNorm2d if sick else None).eval()
    if not sick:
        for module in list(model.modules()):
            names = [name for name, _ in module.named_children()]
            for name, after in itertools.pairwise(names):
                conv, norm = getattr(module, name), getattr(module, after)
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(conv, norm))
                    setattr(module, after, nn.Identity())
    model = model.to(DEVICE, BF16).to(memory_format=torch.channels_last)
    x = images(size(64, 1), size(320, 32), True, BF16)
    return inference(lambda: model(x))


@pair
def audio_conformer_float32(sick: bool) -> Step:
    from torchaudio.models import Conformer

    width = size(512, 16)
    model = Conformer(width, size(8, 2), 4 * width, size(6, 1), 31).to(DEVICE)
    frames = size(512, 32)
    x = normal(size(16, 2), frames, width)
    lengths = torch.full((x.shape[0],), frames, device=DEVICE)
    return training(lambda: model(x, lengths)[0].float().square().mean(), adamw(model), autocast=not sick)


@pair
def audio_mel_float64(sick: bool) -> Step:
    from torchaudio.transforms import AmplitudeToDB, MelSpectrogram

    torch.set_float32_matmul_precision("high")
    dtype = torch.float64 if sick else torch.float32
    mel = MelSpectrogram(16000, n_fft=1024, hop_length=256, n_mels=80).to(DEVICE, dtype)
    decibels = AmplitudeToDB().to(DEVICE)
    waves = normal(size(128, 1), size(160_000, 4000), dtype=dtype)
    head = nn.Linear(80, 256).to(DEVICE)
    return training(
        lambda: head(decibels(mel(waves)).float().transpose(1, 2)).square().mean(), adamw(head), autocast=False
    )


@pair
def pyg_gcn_scatter(sick: bool) -> Step:
    from torch_geometric.nn import GCNConv

    torch.set_float32_matmul_precision("high")
    nodes, edges, width = size(100_000, 20), size(1_500_000, 60), size(128, 8)
    ends = tokens(nodes, 2, edges)
    ends = torch.cat([ends, ends.flip(0)], 1)
    graph: torch.Tensor = ends
    if not sick:
        values = torch.ones(ends.shape[1], device=DEVICE)
        graph = torch.sparse_coo_tensor(ends, values, (nodes, nodes)).coalesce().to_sparse_csr()
    layers = nn.ModuleList(GCNConv(width, width, normalize=False) for _ in range(3)).to(DEVICE)
    x = normal(nodes, width)

    def forward() -> torch.Tensor:
        h = x
        for layer in layers:
            h = layer(h, graph).relu() * 0.01
        return h

    return inference(forward)


@pair
def pyg_single_graphs(sick: bool) -> Step:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv

    torch.set_float32_matmul_precision("high")
    width = size(64, 8)
    graphs = [Data(x=normal(200, width), edge_index=tokens(200, 2, 800)) for _ in range(size(16, 2))]
    layers = nn.ModuleList(GATConv(width, width, heads=2, concat=False) for _ in range(2)).to(DEVICE)
    optimizer = adamw(layers)
    given = graphs if sick else [Batch.from_data_list(graphs)]

    def step() -> None:
        for graph in given:
            h = graph.x
            for layer in layers:
                h = layer(h, graph.edge_index).relu()
            h.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair
def lightning_gradient_norms(sick: bool) -> Step:
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self, width: int) -> None:
            super().__init__()
            blocks = [part for _ in range(size(40, 2)) for part in (nn.Linear(width, width), nn.LayerNorm(width))]
            self.net = nn.Sequential(*blocks)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.net(batch).float().square().mean()

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
            gradients = {name: p.grad for name, p in self.named_parameters() if p.grad is not None}
            if sick:
                norms = {name: (g / g.numel()).norm(2) for name, g in gradients.items()}
                norms["total"] = sum(norms.values()) / len(norms)
                return norms
            return dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)

    module = Classifier(size(768, 16)).to(DEVICE)
    optimizer = module.configure_optimizers()
    x = normal(size(1024, 4), size(768, 16))
    return training(
        lambda: module.training_step(x, 0), optimizer, after_backward=lambda: module.on_before_optimizer_step(optimizer)
    )
