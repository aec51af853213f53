"""Keys are readable, the same everywhere, and two of them never share a folder."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from changed import replace
from hypothesis import example, given
from hypothesis import strategies as st
from sample_captures import RUN, capture, run_of

from traceops.baseline.entry import SLUG, UNKNOWN, Key, key_of
from traceops.report.run import Run

WORDS = st.builds(Key, *[st.text(max_size=80)] * 7)


def test_the_key_says_what_times_depend_on() -> None:
    key = key_of(run_of(capture()))
    assert astuple(key) == (
        "gpt-l8-d1024-s512-b8", "4", "NVIDIA H100 80GB HBM3", "1x4", "pytorch_fsdp2", "bf16", "main",
    )  # fmt: skip
    assert key.text.startswith("gpt-l8-d1024-s512-b8 · 4 ranks · NVIDIA H100 80GB HBM3 · 1x4")


def test_the_slug_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert key_of(run_of(capture())).slug == (
        "gpt-l8-d1024-s512-b8_w4_nvidia-h100-80gb-hbm3_1x4_pytorch-fsdp2_bf16_main-9bdba130403a"
    )


@given(WORDS, WORDS)
@example(Key("a", "b", "c", "d", "e", "f", "feature/x"), Key("a", "b", "c", "d", "e", "f", "feature-x"))
@example(Key("a", "b", "c", "d", "e", "f", "Main"), Key("a", "b", "c", "d", "e", "f", "main"))
@example(Key("../..", "", ".", "~", "\0", "\ud800", "é"), Key("..", "..", ".", "~", "\0", "\ud800", "é"))
def test_slugs_are_safe_names_of_their_own(one: Key, other: Key) -> None:
    for key in (one, other):
        assert SLUG.fullmatch(key.slug) and len(key.slug) <= 240
        assert key.matches(key.slug)
    assert (one.slug == other.slug) == (one == other)


@pytest.mark.parametrize(
    ("hosts", "world", "topology"),
    [(["a", "b"], 16, "2x8"), (["a"], 1, "1x1"), (["a", "b"], 5, "2x?"), ([], 4, UNKNOWN), (["a"], None, UNKNOWN)],
)
def test_topology(hosts: list[str], world: int | None, topology: str) -> None:
    assert key_of(Run(hosts=tuple(hosts), world_size=world)).topology == topology


@pytest.mark.parametrize("training", [None, {}, {"config": []}, {"config": 3}, {"layers": -1, "batch_size": True}])
def test_what_a_run_does_not_say_is_unknown(training: dict[str, object] | None) -> None:
    key = key_of(Run(training=training, git=None))
    assert set(astuple(key)) == {UNKNOWN}


def test_a_training_may_say_it_without_a_config_and_accumulate() -> None:
    key = key_of(Run(training={"model_name": "llama", "dtype": "fp8", "batch_size": 2, "grad_accum": 4}))
    assert (key.model, key.precision) == ("llama-b2-a4", "fp8")


def test_branch_and_name_replace_what_the_run_says() -> None:
    run = run_of(capture())
    assert key_of(run, branch="topic", name="my run") == replace(key_of(run), branch="topic", model="my run")


def test_patterns() -> None:
    key = key_of(run_of({"run": RUN}), branch="feature/[x]")
    assert all(
        key.matches(pattern)
        for pattern in ("gpt-l8-d1024-s512-b8", "GPT*", "feature/[x]", "bf16", key.slug[:-13], "*_1x4_*")
    )
    assert not any(key.matches(pattern) for pattern in ("gpt", "feature", "2x4", ""))
