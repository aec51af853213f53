"""What a change would save, by arithmetic on the kinds of memory at a peak: for scripts and runs, cheapest first.

What the kinds cannot tell (the size of a block's input, the phase that becomes the next peak) is a range, and a change
only "fits" where the upper end of it does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from traceops.memory.model import MemoryChange, ModuleMemory, Verdict
from traceops.traces.ran_out import RanOut
from traceops.words.catalogue import sections


def words_of(names: Sequence[str]) -> tuple[str, str]:
    """What the changes are called together, and what they cost."""
    words = sections("changes")
    return " and ".join(words["names"][name] for name in names), "; ".join(words["costs"][name] for name in names)


Held = dict[str, float]  # bytes by kind, as CategoryMemory names them
_STATE = ("parameters", "gradients", "optimizer_state")
_BLOCK = re.compile(r"^(.*?\.?\d+)(?:\.|$)")
_INPUT_SHARE = 0.2  # of what a block keeps for backward: its input, at most (a 17th in a transformer)
_ADAM_STATES = 1.9  # times its parameters that an optimizer holds from which it keeps two moments of each


class Peak(Struct, frozen=True):
    """What a rank held when most was allocated, in bytes by kind. parameters: of the rank's model, 0 where that is not
    known. blocks: bytes of activations by the numbered block that made them (layers.3). allocated: all that tensors
    held. outside: what the device needs besides torch's tensors."""

    held: Held
    allocated: int
    outside: int
    world_size: int
    parameters: int = 0
    blocks: tuple[float, ...] = ()

    @property
    def replicated(self) -> bool:
        """Whether the rank is known to hold all parameters, and not its share of them."""
        whole = 0 < 1.5 * self.parameters <= self.held.get("parameters", 0)
        return whole and not self.held.get("sharding_buffers")

    @property
    def in_copies(self) -> bool:
        """Whether other ranks are known to hold the same parameters."""
        return self.world_size > 1 and self.replicated

    @property
    def in_fp32(self) -> bool:
        """Whether the parameters themselves are known to have 4 bytes each."""
        return self.replicated and self.held.get("parameters", 0) >= 3 * self.parameters

    def after(self, held: Held) -> Peak:
        """The peak with a change, which shrinks what each block keeps as it does all activations."""
        before, now = self.held.get("activations", 0), held.get("activations", 0)
        share = now / before if before else 1.0
        return msgspec.structs.replace(self, held=held, blocks=tuple(share * size for size in self.blocks))


def blocks_of(modules: Sequence[ModuleMemory]) -> tuple[float, ...]:
    """Activations of each numbered block of the model; () of a model without a stack of them."""
    found: dict[str, float] = defaultdict(float)
    for module in modules:
        if match := _BLOCK.match(module.name):
            found[match[1]] += module.held_bytes
    return tuple(found.values()) if len(found) > 1 else ()


def peak_of(ran_out: RanOut, world_size: int) -> Peak | None:
    """What the rank would have held with what it asked for; None where what was held is not known by kind. In the first
    step, an optimizer with states of a part of its parameters is in its first update: where it has gradients of all of
    them, it needs the rest of the states too, counted as Adam's two for each parameter, and the update's copy."""
    if not ran_out.held:
        return None
    weights, gradients, state = (ran_out.held[kind] for kind in _STATE)
    held: Held = {**ran_out.held, "activations": ran_out.rest + ran_out.asked}
    if ran_out.step == 0 and 0 < state < weights <= gradients:
        held |= {"optimizer_state": 2 * weights, "optimizer_temporaries": weights, "activations": ran_out.rest}
    used = max(ran_out.total - ran_out.free - ran_out.reserved, 0)
    return Peak(held, round(sum(held.values())), used, world_size)


def changes_of(peak: Peak, capacity: int | None, error: float) -> list[MemoryChange]:
    """What each change would save, those that fit first, then cheapest in time; several together where none is enough.

    error: of the peak itself, as a share. A combination is added where it fits; capacity None: nothing can be judged.
    """
    known = dict(_CHANGES)

    def together(names: Sequence[str]) -> MemoryChange | None:
        now, both = peak, None
        for name in names:
            if (both := known[name](now)) is None:
                return None
            now = now.after(both[1])
        return None if both is None else _change(names, *both, peak, capacity, error)

    alone = {name: change for name in known if (change := together([name])) is not None and change.saves_bytes > 0}
    found = list(alone.values())
    if capacity is None or any(change.verdict == "fits" for change in found):
        return best_first(found)
    names = [name for name in alone if name != "checkpoint_half"]  # all blocks save more, where more is needed

    def fits(names: Sequence[str]) -> MemoryChange | None:
        change = together(names)
        return change if change is not None and change.verdict == "fits" else None

    first = fewest(names, fits)
    return found if first is None else [first, *found]


T = TypeVar("T")


def fewest(
    known: Sequence[T],
    enough: Callable[[Sequence[T]], MemoryChange | None],
    joined: Callable[[Sequence[T]], Sequence[T]] = list,
) -> MemoryChange | None:
    """The first of the `known` together that are enough, without those that are not needed; None where none are."""
    for count in range(2, len(known) + 1):
        chosen = joined(known[:count])
        if (change := enough(chosen)) is None:
            continue
        for one in reversed(chosen[:-1]):  # the most expensive first
            rest = [other for other in chosen if other is not one]
            if (less := enough(rest)) is not None:
                chosen, change = rest, less
        return change
    return None


def best_first(changes: list[MemoryChange]) -> list[MemoryChange]:
    """Those that fit before those that may, and these before the rest; each in the order that they have."""
    return sorted(changes, key=lambda change: ("fits", "unknown", "too_close", "does_not_fit").index(change.verdict))


def _change(
    names: Sequence[str], least: Held, most: Held, peak: Peak, capacity: int | None, error: float
) -> MemoryChange:
    low, high = _needed(least, peak), _needed(most, peak)
    verdict: Verdict = "unknown"
    if capacity is not None:
        fits = high * (1 + error) + peak.outside <= capacity
        verdict = "fits" if fits else "does_not_fit" if low * (1 - error) + peak.outside > capacity else "too_close"
    name, cost = words_of(names)
    saved = round(peak.allocated - high)
    return MemoryChange(name, [], round(high), round(high + peak.outside), saved, cost, verdict)


def _needed(held: Held, peak: Peak) -> float:
    """Bytes of tensors: what is left of this peak, or the optimizer's step, which may be the higher one now. torch's
    foreach optimizers hold another copy of the parameters that they update for a moment."""
    copy = min(held.get("parameters", 0), held.get("optimizer_state", 0))
    update = sum(held.get(kind, 0) for kind in _STATE) + copy
    return min(max(sum(held.values()), update), peak.allocated)


def _scaled(peak: Peak, **shares: float) -> Held:
    return {kind: size * shares.get(kind, 1.0) for kind, size in peak.held.items()}


def _less(peak: Peak, **shares: float) -> tuple[Held, Held] | None:
    """Exactly these shares of what is held of some kinds; None where nothing is."""
    held = _scaled(peak, **shares)
    return (held, held) if any(peak.held.get(kind) for kind in shares) else None


def _autocast(peak: Peak) -> tuple[Held, Held] | None:
    """bf16 compute: activations of half the size, and a copy of the parameters in 16 bits."""
    held = peak.held
    if held.get("parameter_casts") or not peak.in_fp32 or not held.get("activations"):
        return None
    kept = held["activations"]
    casts = 0.5 * held.get("parameters", 0)
    if 0.5 * kept <= casts:
        return None
    least, most = _scaled(peak, activations=0.5, loss=0.5), _scaled(peak, activations=0.7)
    return {**least, "parameter_casts": casts}, {**most, "parameter_casts": casts}


def _shard(peak: Peak) -> tuple[Held, Held] | None:
    """FSDP: a share of the state, and gathered parameters: of two blocks, or of the model where there are none. At
    least: with its own mixed precision it keeps no copies for autocast, and no second gradients in DDP's buckets."""
    if not peak.in_copies:
        return None
    share = 1 / peak.world_size
    weights, gradients = peak.held.get("parameters", 0), peak.held.get("gradients", 0)
    held = _scaled(peak, parameters=share, gradients=share, optimizer_state=share)
    gathered = 2 / len(peak.blocks) if peak.blocks else 0.0
    least = held | {"gradients": min(weights, gradients) * share, "sharding_buffers": gathered * weights}
    least["parameter_casts"] = gathered * peak.held.get("parameter_casts", 0)
    return least, held | {"sharding_buffers": min(2 * gathered, 1) * weights if gathered else weights}


def _adam_8bit(peak: Peak) -> tuple[Held, Held] | None:
    state, weights = peak.held.get("optimizer_state", 0), peak.held.get("parameters", 0)
    if not weights or state < _ADAM_STATES * weights:
        return None
    shares = ((1 + 4 / 256) / size for size in (4, 4 if peak.in_fp32 else 2))  # of moments in 32 bits, or in 16
    least, most = (_scaled(peak, optimizer_state=share) for share in shares)
    return least, most


def _checkpointed(peak: Peak, part: float) -> tuple[Held, Held] | None:
    """part: of the blocks that are computed again. A block keeps its input, and one is whole while it is computed."""
    whole = sum(peak.blocks)
    if not whole or peak.held.get("activations", 0) < whole:
        return None
    kept = peak.held["activations"] - part * whole
    again = max(peak.blocks)
    least, most = kept + again * part, kept + again + _INPUT_SHARE * part * whole
    if most >= peak.held["activations"]:
        return None
    return {**peak.held, "activations": least}, {**peak.held, "activations": most}


_CHANGES: tuple[tuple[str, Callable[[Peak], tuple[Held, Held] | None]], ...] = (
    ("bf16", _autocast),
    ("zero1", lambda peak: _less(peak, optimizer_state=1 / peak.world_size) if peak.in_copies else None),
    ("half_batch", lambda peak: _less(peak, activations=0.5, loss=0.5, inputs=0.5)),
    ("shard", _shard),
    ("adam_8bit", _adam_8bit),
    ("checkpoint_half", lambda peak: _checkpointed(peak, 0.5)),
    ("checkpoint", lambda peak: _checkpointed(peak, 1.0)),
    ("offload_state", lambda peak: _less(peak, optimizer_state=0.0)),
)
