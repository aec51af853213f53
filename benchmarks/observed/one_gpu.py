"""Fourteen programs of one rank on one GPU (programs/): what each should be told, written before any result.

In order of worth, as time may run out. `--tidy` leaves out what is planted, and so tells the true gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.observed.registry import Program


@dataclass(frozen=True)
class Told:
    """due: what a report should say; never: what would be false; aside: not read before the first mends."""

    due: str
    never: str
    aside: bool = False


def _program(name: str, seconds: float, *, tidy: bool = True, **more: object) -> Program:
    return Program(name, (f"{{one_gpu}}/{name}.py",), seconds=seconds, tidy=tidy, **more)  # type: ignore[arg-type]


PROGRAMS: tuple[Program, ...] = (
    _program("gpt_hygiene", 15),
    _program("images_ema", 17),
    _program("trainer_collator", 18),
    _program("rl_rollouts", 10),
    _program("lightning_epochs", 17),
    _program("lstm_cells", 11),
    _program("diffusion_unet", 12, tidy=False),
    _program("graph_sampling", 15),
    _program("fp16_scaler", 13, tidy=False),
    _program("own_profiler", 14, cupti=0),
    _program("fsdp2_checkpointed", 14, tidy=False),
    _program("generate", 14, tidy=False, launcher="none", options=("--step-on", "forward")),
    _program("reduce_overhead", 28, tidy=False),
    _program("by_hand", 8, launcher="none", options=("--step-on", "forward")),
)
TOLD: dict[str, Told] = {
    "gpt_hygiene": Told(
        "the collector and empty_cache() (TO-W001), each by its share of the run; at most a remark of .item() "
        "(TO-I003); estimate_loss as a model without gradients",
        "a host that is late as the first cause; a leak of memory; .item() with a gain beyond the tidy run's",
        aside=True,
    ),
    "images_ema": Told(
        "the loader's workers are late (TO-I002), with recipe's line; the step without it near the tidy run's",
        ".item() or the running mean as a gain of its own beside a GPU that starves",
        aside=True,
    ),
    "trainer_collator": Told(
        "input in the main thread, in tokenize (TO-I002), with its ms a step; checkpoints, and evaluation if it is 1 % "
        "or more",
        "workers that are late: there are none; recompilation; the profiler as the cause",
    ),
    "rl_rollouts": Told(
        "rollouts, a model without gradients, by their share of the run; inside the updates the host is the limit",
        "evaluation without an if; rollouts as late data; steps that are counted wrong",
        aside=True,
    ),
    "lightning_epochs": Told(
        "late data, or evaluation, in each epoch's first step, by its share; checkpoints if they are 1 % or more",
        "the loader as late in usual steps; a host that is late by more than the tidy run gains",
        aside=True,
    ),
    "lstm_cells": Told(
        "the host is the limit (TO-I001), most of the step; with launches in time no less than the device works",
        "a GPU that is busy; TO-I003 with more than .item() costs",
        aside=True,
    ),
    "diffusion_unet": Told(
        "draw_pictures, a model without gradients, by its share; else nothing serious",
        "a host or input that is late; evaluation without an if",
    ),
    "graph_sampling": Told(
        "the main thread's sample() and copies from memory that is not pinned, with their ms; a step near the tidy "
        "one's",
        "workers that are late; kernels launched late by the framework without sample() named",
    ),
    "fp16_scaler": Told(
        "70 optimizer steps, those that the scaler left out told as such; small steps of the host at most",
        "steps counted by micro-batch; no gradients synchronised (TO-V004); gradients' transfer as a cost: one rank",
    ),
    "own_profiler": Told(
        "checkpoints (TO-W001) by their share; the script's own profiler in steps 29 to 34",
        "an undisturbed step that rests on its recorded ones; a profiler as a trouble of the training",
        aside=True,
    ),
    "fsdp2_checkpointed": Told(
        "nothing serious; the GPU is busy",
        "communication or waiting: one rank; a host that is late by 10 % or more",
        aside=True,
    ),
    "generate": Told(
        "the host is the limit of each pass (TO-I001); 384 passes are counted",
        "training, an optimizer, gradients; a step that is a round",
    ),
    "reduce_overhead": Told(
        "recompilation in each epoch's last step (TO-T001 or TO-W001); CUDA graphs: few launches",
        "a host that is late by more than the device is idle",
    ),
    "by_hand": Told(
        "150 calls of the model; .item() at most a remark, as the GPU is busy",
        "an optimizer; a gain beyond the tidy run's",
    ),
}
