"""The programs of benchmarks/observed_programs.py: ordinary trainings, each run unchanged on two GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

STEPS = 40  # that each of them trains at least


@dataclass(frozen=True)
class Program:
    """One row. command: as of torchrun, in `folder` of the sources; {small} is benchmarks/programs_small.

    seconds: about what a run takes. data: what `make_data` makes first. variants: it is also run in the ways of
    `VARIANTS`. packages: it needs those of --site. planted: it has troubles, so that its own time is of no use.
    """

    name: str
    command: tuple[str, ...]
    folder: str = "."
    seconds: float = 14
    data: str = ""
    variants: bool = False
    packages: bool = False
    planted: bool = False


@dataclass(frozen=True)
class Variant:
    """Another way to start the same program. under: traceops, torchrun, or forked: of a parent that holds torch."""

    name: str
    under: str
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


_NANO = (
    "train.py", "--dataset=random", f"--max_iters={STEPS + 2}", "--gradient_accumulation_steps=2",
    "--eval_interval=1000", "--eval_iters=1", "--log_interval=10",
)  # fmt: skip
_LLAMA = ("llama_fsdp2.py", f"--steps={STEPS + 1}")

# The most telling ones first: time may run out.
PROGRAMS: tuple[Program, ...] = (
    Program("ResNet-50, DDP", ("{small}/resnet_train.py",), seconds=12),
    Program(  # half of its layers: compiling all of them takes a minute
        "nanoGPT, compiled",
        (*_NANO, "--compile=True", "--n_layer=6", "--n_embd=1024", "--n_head=16"),
        "nanoGPT", seconds=28, data="nanogpt",
    ),
    Program(
        "minGPT-ddp",
        ("main.py", "data_config.path=text.txt", "data_config.truncate=1.0", "trainer_config.max_epochs=1"),
        "minGPT-ddp", seconds=12, data="mingpt", variants=True, packages=True,
    ),
    Program("tensor parallel", (*_LLAMA, "--tp", "--layers=8"), "field"),
    Program("Lightning", ("lit_train.py",), "field", seconds=16),
    Program("FSDP2, compiled", (*_LLAMA, "--compile", "--ckpt"), "field", seconds=22),
    Program("Hugging Face Trainer", ("hf_train.py", f"--steps={STEPS + 1}"), "field", seconds=18),
    Program("all troubles at once", ("{small}/all_at_once.py",), seconds=24, planted=True),
    Program("nanoGPT, eager", (*_NANO, "--compile=False"), "nanoGPT", data="nanogpt"),
    Program("pipeline, 1F1B", ("pp.py", "1f1b", "8"), "field", seconds=13),
    Program("FSDP2, eager", _LLAMA, "field", seconds=16),
)  # fmt: skip

# For two ranks on a CPU: whether all of this works.
ON_CPU: tuple[Program, ...] = (
    Program("ResNet-50, DDP", ("{small}/resnet_train.py",)),
    Program("Hugging Face Trainer", ("{small}/hf_trainer.py",), variants=True),
    Program("all troubles at once", ("{small}/all_at_once.py",), planted=True),
)

# What `traceops run` sets beside its capture, which torchrun does not.
_RECORDS = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000",
    "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH", "NCCL_DEBUG_FILE": "nccl.%h.%p.log",
}  # fmt: skip
VARIANTS: tuple[Variant, ...] = (
    Variant("forked", "forked"),
    Variant("no-observe", "traceops", ("--no-observe", "--no-light")),
    Variant("variables", "torchrun", variables=_RECORDS),
    Variant("no-hang-watch", "traceops", ("--hang-timeout", "0", "--init-timeout", "0")),
    Variant("no-light", "traceops", ("--no-light",)),
    Variant("traceops again", "traceops"),
)


def make_data(kind: str, folder: Path) -> None:
    """The data of one program, drawn at random, the same each time."""
    import numpy as np

    drawn = np.random.default_rng(0)
    if kind == "nanogpt":
        for name in ("train.bin", "val.bin"):
            (folder / "data" / "random").mkdir(parents=True, exist_ok=True)
            drawn.integers(0, 50_257, 2_000_000).astype(np.uint16).tofile(folder / "data" / "random" / name)
    if kind == "mingpt":  # 60 batches of 216 for each of two ranks are nine tenths of it
        letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'-&$\n3"))
        (folder / "text.txt").write_text("".join(drawn.choice(letters, 128 + 60 * 216 * 2 * 10 // 9)))
