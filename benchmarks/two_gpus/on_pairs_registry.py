"""The programs and troubles of on_pairs.py: what is true of each was written before any ran on GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import ROOT
from benchmarks.observed_ranks.truth import Run
from benchmarks.observed_ranks.turns import Turn


def _of(name: str, path: str, options: tuple[str, ...] = (), **more: object) -> Turn:
    return Turn(name, path, options, block=38, **more)  # type: ignore[arg-type]


def _field(name: str, path: str, *options: str, **more: object) -> Turn:
    return _of(name, path, options, source="field", **more)


_NANO = (
    "--dataset=random", "--max_iters={steps}", "--gradient_accumulation_steps=2", "--eval_interval=1000",
    "--eval_iters=1", "--log_interval=10",
)  # fmt: skip

# traceops records in the first and in the fourth turn of 38 steps. One job fewer where four would not fit into 80 GB.
PROGRAMS = (
    _field("HF Trainer", "hf_train.py", traced=1, seconds=80),
    _field("FSDP2, compiled", "llama_fsdp2.py", "--compile", "--ckpt", traced=1, seconds=100),
    _field("Lightning", "lit_train.py", steps=153, seconds=75),
    _field("tensor parallel", "llama_fsdp2.py", "--tp", "--layers=8", "--steps={steps}", seconds=95),
    _of("nanoGPT, eager", "train.py", (*_NANO, "--compile=False"), source="nanoGPT", traced=1, seconds=55),
    _of("ResNet-50, DDP", "programs/small/resnet_train.py", seconds=65),
    _of(
        "nanoGPT, compiled", "train.py",
        (*_NANO, "--compile=True", "--n_layer=6", "--n_embd=1024", "--n_head=16"),
        source="nanoGPT", traced=1, seconds=80,
    ),
    _field("pipeline, 1F1B", "pp.py", "1f1b", "8", steps=153, seconds=60),
    _field("FSDP2, eager", "llama_fsdp2.py", "--batch=2", "--steps={steps}", seconds=95),
    _of(
        "minGPT-ddp", "main.py",
        ("data_config.path=text.txt", "data_config.truncate=1.0", "trainer_config.max_epochs=1"),
        source="minGPT-ddp", steps=153, seconds=55,
    ),
    _of("planted program, healthy", "observed_ranks/programs/troubled.py", seconds=55),
)  # fmt: skip

_NOT_0 = r"[Rr]ank 0('s host (is late|takes)|'s input comes late| is late| causes|(takes|computes) longer)"
_NEVER = rf"{_NOT_0}|[✖▲] .{{0,40}}[Ww]aits? for (its |their )?input|NVLink|not synchronised|power cap|TO-O00[123]"


@dataclass(frozen=True)
class Beside:
    """What runs beside a job: products on its second GPU, or Python on the cores of rank 1."""

    gpu: bool = False
    cores: bool = False


def _run(name: str, truth: str, due: tuple[str, ...], *options: str, never: str = _NEVER) -> Run:
    return Run(name, "troubled", truth, options, due, never, plain="planted program, healthy")


_PYTHON = r"[Rr]ank 1(?=.*write_metrics)"
_COLLECTOR = r"collector.{0,60}rank 1|[Rr]ank 1.{0,90}(collector|garbage)"
_EVALUATION = r"[Ee]valuat|model without gradients"
_SAVE = r"[Cc]heckpoint|[Ss]av(e|ing)"
_STRANGER = r"[Aa]nother process|pid \d+"
_CORES = r"for a core"
TROUBLES: tuple[Run, ...] = (
    _run("python", "rank 1's host runs write_metrics for 40 ms a step", (_PYTHON,), "--python", "40"),
    _run("collector", "rank 1 collects garbage over 800,000 objects more each 4th step", (_COLLECTOR,),
         "--heap", "800000"),
    _run("recompiles", "rank 1 compiles anew in each step", (r"[Cc]ompil",), "--recompile", "1"),
    _run("empties", "rank 1 empties the allocator's cache in each step",
         (r"empty_cache|cudaMalloc|allocator|for memory",), "--empty", "1"),
    _run("stranger", "another process computes on rank 1's GPU", (_STRANGER,), never=_NOT_0),
    _run("hogged_cores", "eight processes of Python on rank 1's four cores", (_CORES,), "--bind", "4", never=_NOT_0),
    _run("evaluates", "all evaluate six batches in each 10th step", (_EVALUATION,), "--eval-each", "10"),
    _run("saves", "rank 0 saves the model in each 20th step", (_SAVE,), "--save-each", "20",
         never=_NEVER.replace(_NOT_0, "[Rr]ank 1 is late")),
    _run("python_evaluates", "write_metrics, 40 ms on rank 1; all evaluate each 10th step", (_PYTHON, _EVALUATION),
         "--python", "40", "--eval-each", "10"),
    _run("stranger_saves", "another process on rank 1's GPU; rank 0 saves each 20th step", (_STRANGER, _SAVE),
         "--save-each", "20", never="[Rr]ank 0's host"),
    _run("collector_cores", "garbage on rank 1 each 4th step, and its cores are hogged", (_CORES, _COLLECTOR),
         "--heap", "800000", "--bind", "4", never=_NOT_0),
    _run("empties_evaluates", "rank 1 empties its cache each step; all evaluate each 10th",
         (r"empty_cache|cudaMalloc|allocator|for memory", _EVALUATION), "--empty", "1", "--eval-each", "10"),
)  # fmt: skip
BESIDE = {
    "stranger": Beside(gpu=True), "stranger_saves": Beside(gpu=True),
    "hogged_cores": Beside(cores=True), "collector_cores": Beside(cores=True),
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A program of `sources`/field under traceops: its command, what is true of it. own: it starts its ranks itself.

    alone: it runs without traceops. slow: rank 1 sleeps for 50 ms a step.
    """

    name: str
    truth: str
    command: tuple[str, ...]
    own: bool = False
    slow: bool = False
    alone: bool = False
    ranks: int = 2
    seconds: float = 30.0


# Truths as in the README of these programs.
FIELD = (
    Field("experts_50", "even: a step takes 39.2 ms", ("ep.py", "0.5")),
    Field("experts_75", "three of four tokens on rank 1: 55.2 ms, even 39.2", ("ep.py", "0.75")),
    Field("gpipe_4", "fills and drains for 20 % of 60.9 ms", ("pp.py", "gpipe", "4")),
    Field("gpipe_4_uneven", "stages of 8 and 16 blocks: 115.3 ms, evenly split 90.7",
          ("pp.py", "gpipe", "4", "uneven")),
    Field("item_straggler", "rank 1 sleeps for 50 ms a step", ("item_straggler.py",), slow=True),
    Field("host_sync_join", "rank 1 sleeps for 50 ms a step", ("host_sync_join.py",), slow=True),
    Field("tp_slow", "rank 1 sleeps for 50 ms a step", ("tp_slow.py",), slow=True),
    Field("scaler", "60 iterations, some of which the scaler leaves out", ("scaler.py",)),
    Field("short", "10 steps: no whole one is recorded", ("short.py",)),
    Field("spawn", "starts its own ranks; 30 steps", ("spawn.py",), own=True),
    Field("hf_callback", "HF Trainer, 30 steps, evaluation every 6", ("hf_trainer.py",)),
    Field("acc", "accelerate, accumulation of 2, an evaluation an epoch", ("acc.py",)),
    Field("acc_prof", "its own profiler: its steps are not ours", ("acc_prof.py",)),
    Field("context_parallel", "ring attention, 30 steps", ("cp.py",)),
    Field("hf_fsdp", "HF Trainer, FSDP2: 79.6 ms, busy 78.6 and 42.5, rank 1's host late",
          ("hf_train.py", "--fsdp", "--accum", "1"), seconds=40.0),
    Field("power_cap", "rank 1's products of random numbers need more power than rank 0's of zeros",
          (str(ROOT / "benchmarks/two_gpus/power.py"), "700"), seconds=45.0),
    Field("held_outside", "another library in the process holds 35 % of the GPU; torch runs out of memory",
          (str(ROOT / "benchmarks/crashes/held_outside.py"),), ranks=1),
    Field("long_resnet", "ResNet-50 under DDP, 1,100 steps: three light windows",
          (str(ROOT / "benchmarks/programs/small/resnet_train.py"), "--steps", "1100"), seconds=75.0),
    Field("long_python", "rank 1's host runs write_metrics for 40 ms a step: in all three light windows",
          (str(ROOT / "benchmarks/observed_ranks/programs/troubled.py"), "--steps", "1060", "--python", "40"),
          seconds=115.0),
    Field("long_trainer", "HF Trainer as above, 1,060 steps", ("hf_train.py", "--steps", "1060"), seconds=175.0),
    Field("long_lightning", "Lightning as above, 1,060 steps (lit_long.py)", ("lit_long.py",), seconds=105.0),
    Field("long_python_evaluates", "as python_evaluates, 1,060 steps: rank 1 is late in all light windows",
          (str(ROOT / "benchmarks/observed_ranks/programs/troubled.py"), "--steps", "1060", "--python", "40",
           "--eval-each", "10"), seconds=140.0),
    Field("step_end_ddp", "steps of two ranks with the capture and without, in turn",
          ("-m", "benchmarks.two_gpus.step_end", "llama:25", "resnet:25"), alone=True, seconds=85.0),
)  # fmt: skip
