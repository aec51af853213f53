"""Healthy texts of a thirteenth day, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

# fmt: off
THIRTEENTH_FINE: tuple[Input, ...] = (
    Input("unbteach23", FINE, "diagnose",
        "facebookresearch/unbiased-teacher#23",
        "log.txt",
        "7ba4fb8f0fa9ae5d8ddf25edf5d7fd44995c6b6893ee01bec27c43f9609e1865",
        "a training of detectron2 goes on from a checkpoint; its counter begins at zero",
        right=NO_EVIDENCE, never="✖|▲", day=13),
    Input("sglang9099", FINE, "diagnose",
        "sgl-project/sglang#9099",
        "log.txt",
        "a369c1c900c3e992fad3f25cd25a76ce7aedf684174c91f44f464040dc4ce19a",
        "SGLang's server answers requests with 200",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=13),
    Input("anytime", FINE, "diagnose",
        "altieriumb7/adaptive-anytime-llm-routing@2732dc5d72f0f92b42cd3c141b65d16d9fba8142",
        "train_stderr.log",
        "3939e214fc4b758ea42a8aba5e3ddb729dd7d05e79cbe88084900bdca4a68f0d",
        "bars of an evaluation over each other, to 100 %; then a RuntimeWarning of numpy; nothing fails",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=13),
    Input("localai", FINE, "diagnose",
        "sridhar1804/local-ai@eb08446bfa2507a2bae3d9323f1732376c475c8a",
        "logs/vllm.log",
        "e0c928d433217423b8f9af38e15d448de5cda8aeac2c0b7f4c6133a6ea25afec",
        "vLLM's server starts in WSL and waits for requests; warnings only",
        right=NO_EVIDENCE, never="✖|▲", day=13),
    Input("vitcnn", FINE, "diagnose",
        "YahavFrei/ViT-vs-CNN-medical-imaging@0829035ef2fb15e11bb0f16a0bae828e386f592a",
        "logs/nohup.out",
        "3ada6b04ab7b161b7db8f0c0431520ab50cbb2355e539e9fae971955b889c139",
        "a search of hyperparameters with Optuna: poor trials are pruned, the search ends with its best",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=13),
    Input("hotpotsft", FINE, "diagnose",
        "Ning-Guo/hotpotqa-agent@cf23f2a0680a606c5bea334718344f7b8cb45e3c",
        "logs/sft.log",
        "cf41f9e9b8c041b34c218b1465fb09fcc394e3a5b5c1e1ba3559e8ec31902cb0",
        (
            "a LoRA training of Qwen2.5-3B with Trainer runs its three epochs and saves its adapter; "
            "tokenizers warns of forks"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=13),
    Input("samfine", FINE, "diagnose",
        "Gnkgo/finetune-SAM@8e5f95fea229fc1d8c517ecd3500f45caf74a7e8",
        "finetune.err",
        "25bfaf3bcf4844e3d5525734a6e965d6a06bd9a45947a138a8e2fa0179c187e5",
        "a finetuning of SAM goes on at epoch 178 of 200; a warning of too many loader workers",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=13),
    Input("hotpotexp1", FINE, "diagnose",
        "Ning-Guo/hotpotqa-agent@cf23f2a0680a606c5bea334718344f7b8cb45e3c",
        "logs/exp1.log",
        "89ff27a9b32c22e4f370644113e7b1ee05936bd55e5d3e5ea1a6c10f4f77bed2",
        (
            "vLLM answers 500 questions in one process, is ended by it (SIGTERM, mode=abort, its normal "
            "shutdown), and the results are saved; in its begin a warning with the traceback of an optional "
            "import"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=13),
)
# fmt: on
