"""The choice between the built-in GPT and a model of transformers."""

from __future__ import annotations

import torch

from traceops.train.config import Sizes, TrainConfig
from traceops.train.gpt import GPT, LanguageModel
from traceops.train.hf import CausalLM


def make_model(config: TrainConfig, sizes: Sizes) -> LanguageModel:
    """The model of ``--model`` on the CPU, in float32, or float64 for fp64.

    Raises UsageError for a model that transformers cannot load.
    """
    model: LanguageModel
    if config.model == "gpt":
        model = GPT(sizes, config.activation_checkpointing)
    else:
        model = CausalLM(config.model.removeprefix("hf:"), sizes.seq_len, config.activation_checkpointing)
    return model.to(torch.float64 if config.precision == "fp64" else torch.float32)
