"""The programs of runs.py: where each is from, how it is set up, run and counted.

Placeholders in a command: {checkout} of the program's repository, {small} the folder of the small programs.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH = ("torch==2.13.0", "numpy")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "torch": (*TORCH, "tqdm", "tiktoken", "requests"),
    "hf": (*TORCH, "transformers", "accelerate", "datasets", "trl", "evaluate"),
    "lightning": (*TORCH, "lightning"),
    "ignite": (*TORCH, "pytorch-ignite"),
    "deepspeed": (*TORCH, "setuptools", "wheel", "deepspeed"),
    "picotron": (*TORCH, "transformers==4.47.0", "datasets", "wandb"),
}
LIGHTNING = "Lightning-AI/pytorch-lightning@7f0c3436cd3f6ad3753125672024fc415cbcb414"
STEPS = "steps ([0-9]+)"
WEIGHTS = r"weights (\w+)"


@dataclass(frozen=True)
class Program:
    """One program.

    origin: owner/name@commit:path or the package on PyPI. environment: of ENVIRONMENTS. command: after ``--``.
    data: what data.py makes in the folder that the program runs in.
    count: a pattern for the program's own number of steps in its output; its last match counts, plus `offset`.
    result: a pattern for what must be equal without traceops: every match counts.
    steps: its number where it prints none: as its arguments and data make it.
    launcher: of `traceops run`. within: whether it has to run in its checkout, there in `folder`.
    groups: whether the ranks talk to each other at all. aside: kept unseen until the mends were made.
    plant: where:rank:seconds of a planted slow rank, and the cause it must be named with.
    stubs: whether packages that it imports and does not use stand in for missing ones (stubs).
    """

    name: str
    origin: str
    environment: str
    command: tuple[str, ...]
    count: str
    result: str
    data: str = ""
    offset: int = 0
    steps: int | None = None
    folder: str = ""
    launcher: str = "torchrun"
    env: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ("--unprofiled", "4", "--active", "8")
    ranks: int = 2
    groups: bool = True
    aside: bool = False
    within: bool = False
    plant: str = ""
    cause: str = ""
    stubs: bool = False


NANOGPT = "karpathy/nanoGPT@3adf61e154c3fe3fca428ad6bc3818b27a3b8291:train.py"
EXAMPLES = "pytorch/examples@77f55b912142e11fcfdf5b530231fb9c52f181e8"
_PICOTRON = "huggingface/picotron@59714b1bf25541dbeb6f5a721ed15f6d0768e786:train.py"
MINGPT = "karpathy/minGPT@37baab71b9abea1b76ab957409a1cc2fbfba8a26"
TIMM = "huggingface/pytorch-image-models@aa4b5850c1543fa488abf260f18390eda46cf85d"
MEGATRON = "NVIDIA/Megatron-LM@d98e8a64ddf34856e74b24714e3bedb2f5a39553"
_NANO = (
    "train.py",
    "--dataset=shakespeare_char",
    "--device=cpu",
    "--compile=False",
    "--backend=gloo",
    "--n_layer=2",
    "--n_head=2",
    "--n_embd=64",
    "--block_size=32",
    "--batch_size=4",
    "--max_iters=24",
    "--gradient_accumulation_steps=4",
    "--eval_interval=12",
    "--eval_iters=2",
    "--log_interval=1",
    "--dropout=0.0",
)
_STEP = r"\] Step: (\d+)"


def picotron(
    kind: str, environment: str = "picotron", aside: bool = False, plant: str = "", cause: str = ""
) -> Program:
    return Program(
        f"picotron {kind}",
        _PICOTRON,
        environment,
        ("{checkout}/train.py", "--config", f"{kind}.json"),
        _STEP,
        r"Loss: +([\d.]+)",
        data="picotron",
        aside=aside,
        env=(("HF_TOKEN", "none"),),
        stubs=True,
        plant=plant,
        cause=cause,
    )


def deepspeed(
    stage: int, environment: str = "deepspeed", aside: bool = False, plant: str = "", cause: str = ""
) -> Program:
    return Program(
        f"DeepSpeed ZeRO-{stage}",
        "PyPI deepspeed",
        environment,
        ("{small}/deepspeed_train.py", str(stage)),
        STEPS,
        r"loss ([\d.e-]+)",
        aside=aside,
        plant=plant,
        cause=cause,
    )


TRL = (
    "--model_name_or_path",
    "tiny",
    "--max_steps",
    "24",
    "--per_device_train_batch_size",
    "2",
    "--logging_steps",
    "1",
    "--output_dir",
    "out",
    "--report_to",
    "none",
    "--bf16",
    "false",
    "--max_length",
    "64",
    "--save_strategy",
    "no",
)
TRL_SFT = ("-m", "trl.scripts.sft", "--dataset_name", "rows")
_TRL = (*TRL, "--use_cpu", "true", "--ddp_backend", "gloo")
TRL_COUNT, TRL_LOSS = r"(\d+)/24 \[", r"'loss': '?([\d.]+)"
_ADDER = ("{checkout}/projects/adder/adder.py", "--trainer.max_iters=24", "--model.model_type=gpt-nano")
_LIGHTNING = ("{small}/lightning_train.py",)
PROGRAMS: tuple[Program, ...] = (
    Program(
        "nanoGPT",
        NANOGPT,
        "torch",
        _NANO,
        r"iter (\d+): loss",
        r"loss ([\d.]+)",
        data="nanogpt",
        within=True,
        offset=1,
        ranks=1,
        groups=False,
        launcher="none",
    ),
    Program(
        "HF Trainer",
        "PyPI transformers",
        "hf",
        ("{small}/hf_trainer.py",),
        STEPS,
        WEIGHTS,
        plant="loader:1:0.2",
        cause="input",
    ),
    Program(
        "accelerate",
        "PyPI accelerate",
        "hf",
        ("{small}/accelerate_train.py",),
        STEPS,
        WEIGHTS,
        plant="compute:1:0.1",
        cause="gpu_compute",
    ),
    Program(
        "TRL sft",
        "PyPI trl",
        "hf",
        (*TRL_SFT, *_TRL, "--gradient_accumulation_steps", "2"),
        TRL_COUNT,
        TRL_LOSS,
        data="trl",
        plant="backward:1:0.2",
        cause="host",
    ),
    Program(
        "Lightning automatic",
        "PyPI lightning",
        "lightning",
        _LIGHTNING,
        STEPS,
        WEIGHTS,
        plant="backward:1:0.2",
        cause="host",
    ),
    Program("Lightning's own launcher", "PyPI lightning", "lightning", _LIGHTNING, STEPS, WEIGHTS, launcher="none"),
    deepspeed(1, plant="forward:1:0.2", cause="host"),
    deepspeed(2, plant="optimizer:1:0.2", cause="host"),
    picotron("tp"),
    picotron("dp", plant="forward:1:0.2", cause="host"),
    Program("pipelining GPipe", "PyPI torch", "torch", ("{small}/pipeline_train.py", "gpipe"), STEPS, WEIGHTS),
    Program(
        "Fabric language_model",
        f"{LIGHTNING}:examples/fabric/language_model/train.py",
        "lightning",
        (
            *("fabric", "run", "--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"),
            "{checkout}/examples/fabric/language_model/train.py",
        ),
        "",
        r"(?:loss) ([\d.]+)",
        data="wikitext",
        steps=40,
        launcher="none",
    ),
    Program(
        "DeepSpeed's own launcher",
        "PyPI deepspeed",
        "deepspeed",
        ("deepspeed", "--num_gpus", "2", "{small}/deepspeed_train.py", "2"),
        STEPS,
        r"loss ([\d.e-]+)",
        launcher="none",
        plant="backward:1:0.2",
        cause="host",
    ),
    Program(
        "PyTorch-Ignite (its own ranks)",
        "PyPI pytorch-ignite",
        "ignite",
        ("{small}/ignite_train.py",),
        STEPS,
        WEIGHTS,
        launcher="none",
        plant="forward:1:0.2",
        cause="host",
    ),
    Program(
        "examples/rpc/rnn",
        f"{EXAMPLES}:distributed/rpc/rnn/main.py",
        "torch",
        ("{checkout}/distributed/rpc/rnn/main.py",),
        "",
        "",  # unseeded
        steps=50,
        launcher="none",
        groups=False,
    ),
    Program(
        "TRL reward",
        "PyPI trl",
        "hf",
        ("-m", "trl.scripts.reward", "--dataset_name", "pairs", *_TRL),
        TRL_COUNT,
        TRL_LOSS,
        data="trl",
    ),
    # What follows was set aside.
    Program(
        "Lightning manual",
        "PyPI lightning",
        "lightning",
        (*_LIGHTNING, "manual"),
        STEPS,
        WEIGHTS,
        aside=True,
        plant="compute:1:0.1",
        cause="gpu_compute",
    ),
    deepspeed(3, aside=True, plant="forward:1:0.2", cause="host"),
    picotron("pp", aside=True),
    Program(
        "pipelining 1F1B",
        "PyPI torch",
        "torch",
        ("{small}/pipeline_train.py", "1f1b"),
        STEPS,
        WEIGHTS,
        aside=True,
        plant="compute:1:0.03",
        cause="gpu_compute",
    ),
    Program(
        "TRL dpo",
        "PyPI trl",
        "hf",
        ("-m", "trl.scripts.dpo", "--dataset_name", "pairs", *_TRL),
        TRL_COUNT,
        TRL_LOSS,
        data="trl",
        aside=True,
    ),
    Program(
        "minGPT adder",
        f"{MINGPT}:projects/adder/adder.py",
        "torch",
        _ADDER,
        "",
        "",
        steps=24,
        ranks=1,
        groups=False,
        launcher="none",
        aside=True,
    ),
)
