"""How many bytes TO-I004 tells of copies that are not alike."""

from types import SimpleNamespace

import numpy as np
import pytest

from traceops.core.step_words import STEP
from traceops.measure.copies import CopyKind
from traceops.rules.idle_copies import _kind


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (12_585_000, "3 copies a step, 12.6 MB in all, from pageable memory in aten::to"),
        (6_300, "3 copies of typically 2.0 kB a step from pageable memory in aten::to"),
    ],
)
def test_one_large_copy_among_small_ones_is_told_by_all_bytes(total, said):
    """A batch of pictures, its labels and a loss: '3 copies of typically 2.0 kB' took 2.1 ms."""
    steps = 4
    numbers = {name: np.full(steps, 0) for name in ("blocked_ns", "alone_ns", "exposed_ns")}
    kind = CopyKind(
        direction="to_device", memory="pageable", purpose="input", operator="aten::to", region="", beside=False,
        count=np.full(steps, 3), bytes=np.full(steps, 2_048), total_bytes=np.full(steps, total),
        device_ns=np.full(steps, 2_100_000), **numbers,
    )  # fmt: skip
    assert _kind(kind, SimpleNamespace(steps=steps, link=None), STEP).startswith(said)
