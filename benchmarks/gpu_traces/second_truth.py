"""What is true of each trace of the second set (programs/second_*.py), written before any of them was made.

As truth.py, whose set no case here resembles: other models, other troubles, other ways to profile.
"""

from __future__ import annotations

from benchmarks.field.input import INPUT, STARVES
from benchmarks.gpu_traces.truth import ALARM, LATE, LONG, RANKS, SYNC, Expected, sound

# Three patterns had demanded too much and were changed when the traces were read: what is not judged is no clean bill,
# the old profiler records no activity of the GPU, and 'pipelines' are among the rules that were not evaluated.
CLEAN = r"Nothing serious found(?! in what could be judged)"
_LOADER = rf"{INPUT}|TO-I002|DataLoader"
_HOST = rf"{LATE}|{SYNC}"


def _sound(truth: str, never: str = "▲") -> Expected:
    """Nothing planted, and no alarm of any kind."""
    return sound(truth, rf"▲|{never}")


SECOND: dict[str, Expected] = {
    "speech": _sound(
        "an encoder-decoder for speech in bf16, bound by the GPU; two windows of one process: not two ranks", LONG
    ),
    "convnext": _sound(
        "ConvNeXt with a running mean of its weights, bound by the GPU; each window in a file by its step"
    ),
    "contrastive_prints": Expected(
        "two towers, two batches a step, bound by the GPU; each loss is printed, at a cost of next to nothing",
        CLEAN, never=rf"{RANKS}|{ALARM}|▲|{_LOADER}|{LONG}", troubles=("sync, free of cost",),
    ),
    "backward_only": _sound(
        "one backward pass of a trunk with three heads, alone in the window, bound by the GPU: no step, no optimizer",
        r"optimizer alone|a step takes|no backward",
    ),
    "quantised_requests": _sound(
        "inference with weights of eight bits, bound by the GPU; six ranges 'request N', no optimizer",
        r"optimizer alone|[Tt]raining|" + LONG,
    ),
    "experts": Expected(
        "32 experts one after the other, their rows found by nonzero(), which waits for the GPU: both launches and "
        "reads hold it up", _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "scan_loop": Expected(
        "a recurrence of 192 steps in Python: small kernels launched late; nothing is marked",
        LATE, never=rf"{RANKS}|{_LOADER}|{CLEAN}|{SYNC}", troubles=("host",),
    ),
    "transducer_old_api": Expected(
        "GRU cells one after the other and an Adam one by one, by the old profiler of autograd: launched late",
        LATE, r"nothing is known of the GPU", rf"{RANKS}|{_LOADER}|{CLEAN}|{SYNC}", ("host",),
    ),
    "penalty_checks": Expected(
        "WGAN with a penalty: four updates a step, each gradient asked on the host whether it is finite, noise drawn "
        "on the host", _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("sync", "host"),
    ),
    "physics_anomaly": Expected(
        "second derivatives of a small network with anomaly detection left on, which reads the device behind each "
        "operator of the backward pass; an Adam one by one",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "sampling_bar": Expected(
        "one picture drawn in 20 passes of a small UNet, a norm read behind each for tqdm: launched late; one call, no "
        "step, no optimizer", _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}|optimizer alone|a step takes",
        troubles=("host", "sync"),
    ),
    "speculative": Expected(
        "a small model proposes, a larger one checks, tokens compared on the host: launched late; no training",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}|optimizer alone", troubles=("host", "sync"),
    ),
    "volumes_numpy": Expected(
        "scans made in the main process, the answer copied back and counted by numpy: the GPU waits for both",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}|optimizer alone", troubles=("input", "metrics on the host"),
    ),
    "recommender_hash": Expected(
        "words hashed in Python within the loop, no DataLoader; sparse tables updated one by one: the host is late",
        rf"{INPUT}|TO-I002|{_HOST}", never=rf"{RANKS}|{CLEAN}|DataLoader|workers", troubles=("input", "host"),
    ),
    "per_sample_emptied": Expected(
        "gradients of each sample; empty_cache() behind each second step: memory is asked of the driver again; no "
        "optimizer", rf"TO-M005|cudaMalloc|cudaFree|empty_cache|{STARVES}",
        never=rf"{RANKS}|{_LOADER}|✔|optimizer alone",
        troubles=("allocator",),
    ),
    "offloaded_activations": Expected(
        "activations go to pinned memory and come back, on the stream of the kernels: copies are exposed, by design",
        r"copie|copy|[Mm]emcpy|save_on_cpu", never=rf"{RANKS}|{_LOADER}|✔|pin_memory=True", troubles=("copies",),
    ),
    "lora_tokenised": Expected(
        "LoRA under accelerate; text cut in Python by the collate function in the main process; each loss read",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "hf_evaluates": Expected(
        "HF's Trainer on a BERT: an evaluation and a checkpoint behind each third step, the rest of it sound",
        rf"{LONG}|evaluat|checkpoint", never=rf"{RANKS}|{CLEAN}|workers", troubles=("evaluation", "checkpoint"),
    ),
    "lightning_two": Expected(
        "Lightning, two optimizers stepped by hand, small networks: the host is late",
        rf"{LATE}|{_LOADER}", never=rf"{RANKS}|{CLEAN}", troubles=("host",),
    ),
    "graph_breaks": Expected(
        "compiled layers that each break their graph to read a number: launched late, behind reads",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
}  # fmt: skip
