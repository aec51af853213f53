"""How a pipeline's schedules cut a model into stages. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}
PP_SCHEDULES = tuple(STAGES_PER_RANK)


def blocks_of_stages(blocks: int, stages: int, sizes: Sequence[int] = ()) -> list[range]:
    """The blocks of each stage, by number: `sizes` of them, or as many each (the first ones take what is left over)."""
    own = list(sizes) or [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    return [range(*edges) for edges in pairwise([0, *accumulate(own)])]
