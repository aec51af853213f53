"""The blocks of a model that sharded strategies gather and free one at a time."""

from __future__ import annotations

from collections import Counter

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks: entries of the outermost `nn.ModuleList`s that have parameters."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += blocks_of(child)
    return list(dict.fromkeys(found))


def shared_between_blocks(model: nn.Module) -> set[nn.Parameter]:
    """Parameters used in more than one block, or in a block and outside."""
    blocks = blocks_of(model)
    uses = Counter(p for block in blocks for p in set(block.parameters()))
    inside = {module for block in blocks for module in block.modules()}
    outside = [module for module in model.modules() if module not in inside]
    uses.update({p for module in outside for p in module.parameters(recurse=False)})
    return {p for p, count in uses.items() if count > 1}
