"""The choice between the built-in GPT and a model of transformers."""

from __future__ import annotations

import torch

from traceops.train.config import Sizes, TrainConfig
from traceops.train.gpt import GPT, LanguageModel
from traceops.train.hf import CausalLM

_STORED = {"fp64": torch.float64, "bf16-params": torch.bfloat16}


def make_model(config: TrainConfig, sizes: Sizes) -> LanguageModel:
    """The model of ``--model`` on the CPU, in float32, or float64 for fp64 and bfloat16 for bf16-params.

    Raises UsageError for a model that transformers cannot load.
    """
    model: LanguageModel
    if config.model == "gpt":
        model = GPT(sizes, config.activation_checkpointing)
    else:
        model = CausalLM(config.model.removeprefix("hf:"), sizes.seq_len, config.activation_checkpointing)
    return model.to(_STORED.get(config.precision, torch.float32))
