"""Tensors of one operator that do not fit each other, as those of FSDP's split copies: 4 runs could not be analysed."""

from types import SimpleNamespace

import pytest

from traceops.compute.passes import _broadcast


def uses(name, *shapes):
    tensors = [SimpleNamespace(dims=dims) for dims in shapes]
    return SimpleNamespace(use=SimpleNamespace(name=name, inputs=SimpleNamespace(tensors=tensors)))


@pytest.mark.parametrize(
    ("name", "shapes", "elements"),
    [
        ("aten::add", [(8, 1), (1, 16)], 128),
        ("aten::split_with_sizes_copy", [(4, 3149056), (4, 256)], 0),
        ("fsdp::all_gather_copy_in", [(8, 1), (1, 16)], 0),
    ],
)
def test_only_shapes_that_fit_have_a_common_one(name, shapes, elements):
    assert _broadcast(uses(name, *shapes)) == elements
