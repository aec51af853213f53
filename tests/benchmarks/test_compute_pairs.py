"""The pairs of benchmarks/compute: what they cover, and how truths follow from what was measured."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.torch
PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "compute" / "programs"
CAUSES = {
    "float32_products",
    "float32_training",
    "float64",
    "unfused_attention",
    "masked_attention",
    "misaligned_shape",
    "channels_first_layout",
    "layout_copies",
    "unfused_elementwise",
    "optimizer_loop",
    "many_small_kernels",
    "slice_gradients",
    "one_hot_product",
    "recompute_with_free_memory",
    "redundant_casts",
    "repeated_kv",
    "scatter_or_sort",
    "dense_embedding_gradient",
    "concat_growth",
    "large_float_logits",
    "too_small_batch",
    "low_occupancy",
    "bandwidth_bound_at_limit",
    "below_attainable",
    "none",
}
OWN = ("attending", "case", "cases", "libraries", "measured", "own", "serving", "tuned")


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `cases` and `measured`, imported as the programs import them."""
    pytest.importorskip("torch")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(PROGRAMS))
    patch.setenv("DEVICE", "cpu")
    patch.setenv("SMALL", "1")
    yield importlib.import_module("cases"), importlib.import_module("measured")
    patch.undo()
    for name in OWN:
        sys.modules.pop(name, None)


def test_pairs_cover_what_was_asked(programs: tuple[ModuleType, ModuleType]) -> None:
    cases = programs[0].CASES.values()
    pairs = [case for case in cases if not case.clean]
    assert len(pairs) >= 32
    assert sum(case.group == "inference" for case in pairs) >= 10
    assert sum(case.clean for case in cases) >= 20
    assert {label for case in cases for label in case.labels} <= CAUSES


def test_half_of_the_pairs_are_set_aside_by_name(programs: tuple[ModuleType, ModuleType]) -> None:
    case = importlib.import_module("case")
    pairs = [c.name for c in programs[0].CASES.values() if not c.clean]
    kept = {name for name in pairs if case.set_aside(name)}
    assert 0.4 < len(kept) / len(pairs) < 0.6
    assert {"timm_vit_unfused", "decode_without_graph"} <= kept
    assert "clip_per_parameter" not in kept


@pytest.mark.parametrize(
    ("sick", "fixed", "promised", "none"),
    [
        ((30.689, 30.679), (6.103, 5.845), [5.26, 6.71], False),
        ((17.753, 17.744), (18.284, 18.019), [16.86, 19.2], True),
        ((25.942, 22.79), (15.437, 26.13), [21.65, 27.44], True),
        ((2.953, 2.949), (2.367, 2.334), [2.1, 2.6], False),
    ],
)
def test_promises_follow_from_the_steps_measured(
    programs: tuple[ModuleType, ModuleType],
    sick: tuple[float, float],
    fixed: tuple[float, float],
    promised: list[float],
    none: bool,
) -> None:
    measured = programs[1]
    was, becomes = (measured.Measured(*steps, 1.0, 10.0, 1.0) for steps in (sick, fixed))
    found, no_promise = measured.promises(was, becomes)
    assert found == pytest.approx(promised, abs=0.011)
    assert no_promise is none


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru_cells", "window_by_mask", "decode_repeated_cache"])
def test_sick_and_fixed_programs_step(programs: tuple[ModuleType, ModuleType], name: str) -> None:
    case = programs[0].CASES[name]
    for sick in (True, False):
        step = programs[1].make(case, sick)
        assert programs[1].milliseconds(step) > 0
