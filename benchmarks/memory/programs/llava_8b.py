"""Llama 3 8B with CLIP's ViT-L/336 before it, 8.36 billion parameters: weights and gradients in bf16, Adam in 8 bits.

A picture is 576 tokens; --text more follow. The optimizer has the sizes of 8-bit Adam and updates nothing.
"""

import argparse

import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--text", type=int, default=64)
parser.add_argument("--ckpt", action="store_true")
parser.add_argument("--frozen", action="store_true", help="the vision tower is not trained")
args = parser.parse_args()


class Adam8bit(torch.optim.Optimizer):
    """Two bytes an element of state, and a scale for each 256."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = {
                        name: torch.zeros(size, dtype=dtype, device=p.device)
                        for name, size, dtype in (
                            ("first", p.numel(), torch.uint8),
                            ("second", p.numel(), torch.uint8),
                            ("first_scale", -(-p.numel() // 256), torch.float32),
                            ("second_scale", -(-p.numel() // 256), torch.float32),
                        )
                    }


llama = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128320, max_position_embeddings=8192,
    )
)  # fmt: skip
vision = CLIPVisionModel(
    CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336,
        patch_size=14,
    )
)  # fmt: skip
join = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096))
model = nn.ModuleDict({"llama": llama, "vision": vision, "join": join}).to("cuda", torch.bfloat16)
print("parameters", sum(p.numel() for p in model.parameters()))
if args.ckpt:
    llama.gradient_checkpointing_enable()
model.train()
vision.requires_grad_(not args.frozen)
optimizer = Adam8bit([p for p in model.parameters() if p.requires_grad])
for _ in range(4):
    pictures = torch.randn(args.batch, 3, 336, 336, device="cuda", dtype=torch.bfloat16)
    words = torch.randint(0, 128000, (args.batch, args.text), device="cuda")
    seen = join(vision(pictures).last_hidden_state[:, 1:])
    embeds = torch.cat([seen, llama.get_input_embeddings()(words)], 1)
    labels = torch.cat([words.new_full((args.batch, 576), -100), words], 1)
    llama(inputs_embeds=embeds, labels=labels, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
