"""Packages that are no program's own, by the first part of a path that is relative to a folder of sys.path."""

from __future__ import annotations

# Known wherever stacks are read. Both readers add names of their own: what a hang's stack stands in is told also of
# packages that people train from a checkout (Megatron-LM, torchtitan), whose time is no function of the program's.
LIBRARIES = frozenset(
    {
        "torch", "torchvision", "torchdata", "traceops", "numpy", "transformers", "accelerate", "deepspeed", "datasets",
        "lightning", "lightning_fabric", "pytorch_lightning", "safetensors", "huggingface_hub", "triton", "wandb",
        "webdataset", "peft", "trl", "composer", "ray",
    }
)  # fmt: skip
