"""Healthy logs of an eleventh day, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

# fmt: off
ELEVENTH_FINE: tuple[Input, ...] = (
    Input("esollava", FINE, "diagnose",
        "yunsaijc/Eso-LLaVA@ccd293a29f0a928d883c5674e17b5aa3431aabfd", "sft.log",
        "8f490909c333701096eef841761e3f06d03bde146209e4f3c18c40b7906a1c30",
        "LLaVA is finetuned with DeepSpeed on GPUs, 10 epochs, to the end",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("streaminggpu", FINE, "diagnose",
        "benjaminsinzore/streaming_gpu@effb27254b16f446bbee4644a32e0c493ebb5a9b", "finetune.log",
        "7cf0e45a234328ec0cd672d4f4bc6b3ea432d88422c90803887160a8467a517d",
        "a finetuning with one warning that a download was retried, to its end",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("sdfnet", FINE, "diagnose",
        "X-7D1C11010/SDF-Net@6a429086e8772ed8cc939a8067eebe8cb2ebd42e", "pretrain.log",
        "aba929183339204840ca3d9ff2e02fc3ecb7ff5ecef78caaf5d5847a517495b4",
        "a pretraining with messages in Chinese and FutureWarnings, to its end; the last 200 kB of the file",
        right=NO_EVIDENCE, never="✖|▲", day=11),
    Input("augmentqa", FINE, "diagnose",
        "KevinHuang8/Augment_QA@813b785f37911a82808aa0de034fadd43ba1aba3", "vllm.log",
        "297f21b150a9ebc3c575d69a40074f690b572a7158f9bacdd7b42572d34c5619",
        "vLLM's server serves requests; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("deepseekdep", FINE, "diagnose",
        "jayashan10/Deepseek-qwen-deployment@5bddab012dc020b1cc9a55c40c3b50212f1a38cd", "vllm_server.log",
        "76a27a2edb2cb11703a750034d73fc1f7c206ff6e7bea5ee3c99a0ebe8c220a0",
        "vLLM's server serves; one request asked for a model that it does not have (404)",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("guicursor", FINE, "diagnose",
        "yuzhaouoe/GUI-Cursor-Moving@9966e577d9fb532b8c2bb96e69f2170bac6415a4", "verl_demo.log",
        "0b503f110d51a1b5a45f0ebad844ab6262a8cb8ff194193c096130e83c98bcb5",
        (
            "a GRPO training goes on; its workers log errors and tracebacks of answers that they could not "
            "read; the last 200 kB of the file"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=11),
    Input("orpocurr", FINE, "diagnose",
        "chtmp223/alignment-handbook@39648eecad8818c3d51d0c4349555aef5a3f5701", "orpo_curr.out",
        "f979693481ccb4b155fe5d9817fb87b971e6446e1b4faa8226182a486b940a6b",
        "a training with ORPO, to its end and W&B's summary; the last 200 kB of the file",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("evalscope", FINE, "diagnose",
        "zyfjrx/train_sft@e22f57d3be1146cec26e0533c437690536d95e20", "lora_unsloth_pet/eval_0826.log",
        "7cdadedbaeb5c5b2e0b72d13b5abf2a46ed95f7f1007c25defb04a355c155b6b",
        (
            "an evaluation ends well; two calls of a remote judge were refused (401); the last 200 kB of the "
            "file"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=11),
    Input("mammothout", FINE, "diagnose",
        "Damonly15/bachelor-thesis@a574e9530bd830aa8baa8d966fba90120bb2a6be", "out2.err",
        "ed4207a6ca73e09d2d8028a24d78ee6f800fc3025f9ddb1f977c1c456cfc6ef1",
        (
            "a training goes on to task 2; at its start three models of a list could not be imported (Error in "
            "model agem)"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=11),
    Input("isc15", FINE, "diagnose",
        "StrongResearch/isc-demos#15", "log.txt",
        "10afc6267cc9c09cd4b929ecd475a9c8532ce41c777bf389d7b7578017fd16c6",
        "eight ranks of Lightning start, with torchrun's warning of OMP_NUM_THREADS; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
)
# fmt: on
