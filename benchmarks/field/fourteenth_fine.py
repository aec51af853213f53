"""Healthy texts of a fourteenth day, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

LOGS_ON = "with an error, after which its logger goes on"
# fmt: off
FOURTEENTH_FINE: tuple[Input, ...] = (
    Input("fairseq515", FINE, "diagnose",
        "facebookresearch/fairseq#515",
        "log.txt",
        "f43db8e8c6f895808b899b3e0aaace6cd4c52e1091f2a11101767fe8dcf70e70",
        (
            "fairseq's scaler finds its scale in the first steps: overflows whose steps are skipped, as "
            "it should"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=14),
    Input("trtllm3874", FINE, "diagnose",
        "NVIDIA/TensorRT-LLM#3874",
        "log.txt",
        "344f785924ec66fddb361ac5d2a544f06a7e98c400da16e04d9fdfeb5bdb056c",
        "a build of TensorRT-LLM prints many lines of its compiler; nothing fails",
        right=NO_EVIDENCE, never="✖|▲", day=14),
    Input("colossal1400", FINE, "diagnose",
        "hpcaitech/ColossalAI#1400",
        "log.txt",
        "88ea74dc2fd5fddbfad873177fded46ba4bd441b0c11d47bed4169964239ff02",
        "a training of ColossalAI ends its fourth and fifth epoch",
        right=NO_EVIDENCE, never="✖|▲", day=14),
    Input("metaseq446", FINE, "diagnose",
        "facebookresearch/metaseq#446",
        "log.txt",
        "e6e8c22fa454ba64b33acbb5ea8e74ecb5ebdd5bfd7b7de3f1aeb66572baa93f",
        "a training of metaseq begins, with a warning of too many loader workers",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=14),
    Input("qamrleval", FINE, "diagnose",
        "udaybindal01/QA-MRL@2c5b907327dda20b84480474d47a170f3d29135d",
        "logs/eval.log",
        "22c8607fb4966f7058d98a3698df1d297aaeb1ff7c00fc8f90be4d969d4a3978",
        (
            "an evaluation on one GPU encodes its corpus several times and saves its results; a "
            "FutureWarning at its begin"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=14),
    Input("cleandpo", FINE, "diagnose",
        "iiicellled/Clean-Code-Qwen@f0ce0c6ccfc6e192018669fba006aef5fd86c891",
        "dpo.log",
        "99dd3a7965289864143698b4944533047a76dd9b5e2c0e8e3c1822c6d5f444f4",
        "a DPO training by LoRA with its evaluations to 100 %; warnings only",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=14),
    Input("tgilog", FINE, "diagnose",
        "JulienDelavande/text-generation-inference@6e5013b6fbc65660110b35a48e865f1013633d5e",
        "tgi.log",
        "79e7460623ea2c7fed5ac2bdda8c8f42ff1dc0555b5b5cc24f28d659a02a7dd6",
        (
            "TGI's server starts and waits for requests; it does without flash attention, mamba and "
            "Python's transformers, as warnings and one ERROR line say"
        ),
        right=LOGS_ON, never="✖|▲", held=True, day=14),
    Input("cnphi3pre", FINE, "diagnose",
        "CqGao112/CN-Mini-Phi3@4074a0161045ab30257f5fd976d9e8d83db948b7",
        "ds_pretrain.log",
        "4bb14cba0d930af3bcd66279b259617006ef59a8032928540012a8f99207c082",
        (
            "a pretraining under DeepSpeed on six GPUs ends, and its processes exit successfully; "
            "warnings at its begin"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=14),
)
# fmt: on
