"""Inference with Hugging Face's generate(): no training, one token of each prompt a pass. Nothing is planted."""

import time

import torch
from own import CUDA, DEVICE, same_each_time, tell, training_begins
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS, BATCH, NEW, ROUNDS = (1024, 12, 32, 48, 8) if CUDA else (64, 2, 2, 12, 6)


def main() -> None:
    same_each_time()
    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8192, num_attention_heads=16, num_key_value_heads=8, eos_token_id=None, **sizes)
    )
    model = model.to(DEVICE, torch.bfloat16).eval()
    training_begins()
    for number in range(ROUNDS):
        prompts = torch.randint(0, 8192, (BATCH, 64), device=DEVICE)
        begin = time.perf_counter()
        tokens = model.generate(prompts, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        took = time.perf_counter() - begin
        print(f"round {number}: {1e3 * took / NEW:.2f} ms a pass, sum {int(tokens.sum())}", flush=True)
    tell(ROUNDS * NEW, model)


if __name__ == "__main__":
    main()
