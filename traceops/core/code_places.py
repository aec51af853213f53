"""Files that torch.compile writes: no program's own, and named by their content, so otherwise on each rank."""

from __future__ import annotations

import re

# torch/_inductor/codecache.py: `code_hash` is "c" and 51 letters of a hash in base 32, two of which name its folder.
# That may lie anywhere; by itself it is in torchinductor_USER, as a folder of a program's own may be called too.
_WRITTEN = re.compile(r"/torchinductor_[^/]+/[a-z2-7]{2}/[^/]+$|(?:^|[/\\])c[a-z2-7]{51}\.py$")


def is_compiled_code(file: str) -> bool:
    """Whether torch.compile has written this file of Python."""
    return _WRITTEN.search(file) is not None


# Packages that are no program's own, by the first part of a path that is relative to a folder of sys.path.


# Known wherever stacks are read. Both readers add names of their own: what a hang's stack stands in is told also of
# packages that people train from a checkout (Megatron-LM, torchtitan), whose time is no function of the program's.
LIBRARIES = frozenset(
    {
        "torch", "torchvision", "torchdata", "traceops", "numpy", "transformers", "accelerate", "deepspeed", "datasets",
        "lightning", "lightning_fabric", "pytorch_lightning", "safetensors", "huggingface_hub", "triton", "wandb",
        "webdataset", "peft", "trl", "composer", "ray",
    }
)  # fmt: skip
