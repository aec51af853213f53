"""Healthy logs of an eleventh day, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

LOGS_ON = "with an error, after which its logger goes on"

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
        right=NO_EVIDENCE + "|" + LOGS_ON, never="✖|▲", held=True, day=11),
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
        right=NO_EVIDENCE + "|" + LOGS_ON, never="✖|▲", held=True, day=11),
    Input("gritdp", FINE, "diagnose",
        "cyb1219257828/GRiT@04396a148b2801a69bdcd77075feea5549138c2b", "nohup.out",
        "db82e544de0294c5621eb3e9e77429c61b7ca21882d042ccfbdb9ed1a29ab617",
        "GRiT trains with DeepSpeed's fp16, which skips a step now and then for its loss scale; the last 200 kB",
        right=NO_EVIDENCE, never="✖|▲", day=11),
    Input("orpocurr", FINE, "diagnose",
        "chtmp223/alignment-handbook@39648eecad8818c3d51d0c4349555aef5a3f5701", "orpo_curr.out",
        "f979693481ccb4b155fe5d9817fb87b971e6446e1b4faa8226182a486b940a6b",
        "a training with ORPO, to its end and W&B's summary; the last 200 kB of the file",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=11),
    Input("ijepa", FINE, "diagnose",
        "phoenix1881/Predictive-Steering-with-I-JEPA@603eecddfd09a9c91ebdf7bcc52785ca0a2f2309", "finetune.log",
        "502dd75c93259b8c38c08c68e792087bcff368ea69c3ee5cf1479ed795fa0eac",
        "an encoder is finetuned to the end, and loaded once more (missing keys: [])",
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
