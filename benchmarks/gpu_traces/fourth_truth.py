"""What is true of each trace of the fourth set (programs/fourth_*.py), written before any of them was made.

As third_truth.py. A promise ("26.4 ms with input in time") is held to the step of the cured program: it may be off by
15 % of it, and by the time that the report itself says may be recording.
"""

from __future__ import annotations

from benchmarks.field.input import INPUT, STARVES
from benchmarks.gpu_traces.second_truth import CLEAN
from benchmarks.gpu_traces.truth import ALARM, LATE, LONG, RANKS, SYNC, Expected, sound

_LOADER = rf"{INPUT}|TO-I002|DataLoader|num_workers"
_HOST = rf"{LATE}|{SYNC}"
_COPIES = r"TO-I004|runs nothing but copies|copies from or to"


def _sound(truth: str, never: str = "▲") -> Expected:
    """Nothing planted, and no alarm of any kind."""
    return sound(truth, rf"▲|{ALARM}|{_COPIES}|{never}")


FOURTH: dict[str, Expected] = {
    # Written as sound, of a step of 3 ms: it takes 1.3, and the copy 0.3 of that, on the stream of the kernels.
    "small_graph": Expected(
        "a step of some 3 ms in one CUDA graph, a batch copied into it from pinned memory; bound by the GPU",
        rf"{_COPIES}|{CLEAN}", never=rf"{RANKS}|{INPUT}|TO-I002|{SYNC}|optimizer alone|{STARVES}", troubles=("copies",),
    ),
    "mixer_mean": Expected(
        "a mixer with a running mean of its weights, made at once; the loss is read every tenth step; bound by the GPU",
        CLEAN, never=rf"{RANKS}|{ALARM}|▲|{_COPIES}|{INPUT}|TO-I002",
    ),
    "embedded_pictures": _sound(
        "vectors of pictures, no training; two workers keep up; one range a batch; bound by the GPU",
        rf"optimizer alone|[Bb]ackward|{LONG}",
    ),
    "compiled_clipped": _sound("a compiled GPT, clipped; nothing is read; bound by the GPU", LONG),
    "collected_by_itself": Expected(
        "many small layers launched late; each step leaves 12,000 objects in rings beside a heap of a million, and "
        "Python's collector runs by itself, longest in few of the steps",
        rf"{LATE}|{LONG}|collector", never=rf"{RANKS}|{_LOADER}|{CLEAN}|{SYNC} [^.]*▲", troubles=("garbage", "host"),
    ),
    "timer_waits": Expected(
        "synchronize() behind each step, for a timer: launches and kernels take turns where they could overlap",
        rf"{_HOST}", never=rf"{RANKS}|{_LOADER}|\.item\(\) (is|are|reads)|{LONG}", troubles=("sync",),
    ),
    "checked_norms": Expected(
        "many small layers; clipping asks whether the norm is finite, and an Adam takes 212 parameters one by one: the "
        "host is late", _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "guided_sampler": Expected(
        "a sampler of a diffusion model: each time is read on the host, small kernels launched late; no training",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}|[Bb]ackward pass|optimizer alone", troubles=("host", "sync"),
    ),
    "histograms_each_step": Expected(
        "every weight is copied to the host in each step, and numpy makes histograms of them: the GPU waits for that",
        rf"{_HOST}|{_COPIES}", never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "two_slow_workers": Expected(
        "two workers that are too slow; the loss is read in each step, at little cost beside that",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "stopped_prefetch": Expected(
        "the loss is read before numpy makes the next batch in the main thread: the GPU stands meanwhile. Read a step "
        "later, the batch would be made while the GPU computes",
        rf"{_HOST}|{INPUT}", never=rf"{RANKS}|num_workers is too|workers (are|is) (late|too)|{CLEAN}",
        troubles=("sync", "host"),
    ),
    "padded_masks": Expected(
        "Python pads texts in the main process, and masks of 50 MB are copied from pageable memory: the GPU waits for "
        "both", rf"{_HOST}|{INPUT}|{_COPIES}", never=rf"{RANKS}|{CLEAN}|workers (are|is) (late|too)",
        troubles=("host", "copies"),
    ),
}  # fmt: skip
