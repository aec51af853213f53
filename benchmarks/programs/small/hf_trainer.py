"""Hugging Face's Trainer: a small Llama, accumulation over two batches, evaluation every ten steps."""

import torch
from common import CUDA, STEPS, tell
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Random tokens, the same whenever they are asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        tokens = torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=256, num_attention_heads=4, num_key_value_heads=4, **sizes)
arguments = TrainingArguments(
    output_dir="hf_out", max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    logging_steps=5, eval_strategy="steps", eval_steps=10, save_strategy="no", report_to=[], use_cpu=not CUDA,
    ddp_backend=None if CUDA else "gloo", disable_tqdm=True,
)  # fmt: skip
model = LlamaForCausalLM(config)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(4000), eval_dataset=Tokens(16))
trainer.train()
tell(trainer.state.global_step, model)
