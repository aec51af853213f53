"""Logs of a seventh day, a sample by rules of texts that tell of a failure (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CRASH, UNTOLD, WATCHDOG, Input

# fmt: off
SEVENTH: tuple[Input, ...] = (
    Input("voxelpose24", CRASH, "diagnose",
        "AlvinYH/Faster-VoxelPose#24", "log.txt",
        "cef1d2268b8978b1df0128827d26568d2facf0eae3c8b3813d8cdce8f2c208eb",
        "a RuntimeError in DataParallel's replica 1 on device 1; its message is cut off",
        right="RuntimeError", never="✔|holds no evidence", day=7),
    Input("nccl1504", WATCHDOG, "diagnose",
        "NVIDIA/nccl#1504", "log.txt",
        "7b363632cedd888832aacbc2188308c85b84fd2869b2332db0efbb21ff715d42",
        "rank 1 waits in its first collective, a coalesced one, for 30 minutes; of other ranks nothing is here",
        right=r"[Rr]ank 1 .*(coalesced|COALESCED)", never=r"✔|holds no evidence|[Rr]ank [02-9]", day=7),
    Input("kohya1068", CRASH, "diagnose",
        "bmaltais/kohya_ss#1068", "log.txt",
        "f5626623f89bf7548ccb52e317129a7a8f912b59a040e41f98672bd409905c66",
        (
            "frames of a traceback that rich drew in a box, in the launcher of accelerate; its error is not in "
            "these lines"
        ),
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=7),
    Input("accelerate3861", CRASH, "diagnose",
        "huggingface/accelerate#3861", "log.txt",
        "ad388320b4f04a4df2840843916252da96dde78a6c7db12ecc2ebebd4a911931",
        "local rank 3 (pid 3139623) aborted, exit code -6, and the launcher ended the other three with SIGTERM",
        right=r"[Rr]ank 3\b.*SIGABRT|SIGABRT.*[Rr]ank 3\b",
        never="✔|holds no evidence|killed by SIGTERM|ended from outside", day=7),
    Input("selfcritical94", CRASH, "diagnose",
        "ruotianluo/self-critical.pytorch#94", "log.txt",
        "cbb42b09b1e598518ccb94048d2a76ca824855a0268308ee4b54aaaa0d0271a7",
        "a training under DataParallel ends in a traceback whose last lines are missing",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=7),
    Input("particleflow390", CRASH, "diagnose",
        "jpata/particleflow#390", "log.txt",
        "8ba98b4770510ac692d2308bd3438ad42165f8a1aad118a484bef47a27a04347",
        (
            "frames of NCCL's watchdog in torch, which raised for a collective that timed out; whose is not in "
            "these lines"
        ),
        right="NCCL|[Ww]atchdog|timed out|timeout", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=7),
    Input("imagecaption113", CRASH, "diagnose",
        "ruotianluo/ImageCaptioning.pytorch#113", "log.txt",
        "d1161f89c0183bae0879c054818cc6d36ed3a686ad4817c32d93c7b124091c97",
        (
            "a RuntimeError as an epoch's validation ends: tensors on cuda:0 and cuda:1; the traceback of tqdm "
            "behind it was ignored"
        ),
        right="same device", never=r"✔|holds no evidence|std\.py", day=7),
    Input("py4cast116", WATCHDOG, "diagnose",
        "meteofrance/py4cast#116", "log.txt",
        "4074c27f0b065dca15754f432d8135c7183fe604d2e5e105bec3b61eb0357ea2",
        (
            "rank 2 waits in all-gather 1890 for 30 minutes, its lines broken by the terminal; of other ranks "
            "nothing is here"
        ),
        right=r"[Rr]ank 2 .*#1890\b", never=r"✔|holds no evidence|[Rr]ank [013-9]", day=7),
    Input("deepspeed3775", CRASH, "diagnose",
        "deepspeedai/DeepSpeed#3775", "log.txt",
        "304b61f5cc66960d1fd2461f2e2a2f75a3bde4510e4cac899fe99da86d2282a9",
        (
            "frames of a traceback that rich drew in a box, in the backward pass of ZeRO 3; its error is not in "
            "these lines"
        ),
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=7),
    Input("deepspeed7533", CRASH, "diagnose",
        "deepspeedai/DeepSpeed#7533", "log.txt",
        "f7cd3b35b1788d3aa2eed348fe535e45efdd3a0b6b5f10e62a3612f9ba57a2bb",
        (
            "local rank 1 (pid 5722) aborted, exit code -6; torchrun ended the others, one of them (pid 5723) "
            "with signal 9"
        ),
        right=r"[Rr]ank 1\b.*SIGABRT|SIGABRT.*[Rr]ank 1\b",
        never="✔|holds no evidence|killed by SIG(TERM|KILL)|ended from outside", held=True, day=7),
    Input("te941", CRASH, "diagnose",
        "NVIDIA/TransformerEngine#941", "log.txt",
        "31e4a9d68339a8b49dffec908ea1f01bbed760d18e9782853aecf6ef87f7c872",
        "an IndexError (_Map_base::at) in Transformer Engine's rmsnorm_bwd, in Megatron's backward pass",
        right="IndexError", never="✔|holds no evidence", held=True, day=7),
    Input("megatron735", WATCHDOG, "diagnose",
        "NVIDIA/Megatron-LM#735", "log.txt",
        "066910c98a999ee418c2ac85829937447d775ed5096302a792af4599fced37de",
        "ranks 0, 1 and 2 wait in all-reduce 305 for ten minutes; the text ends there",
        right=r"#305\b", never="✔|holds no evidence", day=7),
    Input("r1v44", CRASH, "diagnose",
        "StarsfieldAI/R1-V#44", "log.txt",
        "8388200928f7e5921ec0135c9386fff760cd93e94121f11b020d60b1c727e6ee",
        (
            "an AttributeError on rank 0: the trainer has no _last_loaded_step; then the first frames of the same "
            "traceback"
        ),
        right="AttributeError|_last_loaded_step", never="✔|holds no evidence", held=True, day=7),
    Input("vllm9321", WATCHDOG, "diagnose",
        "vllm-project/vllm#9321", "log.txt",
        "27bdffdbfe771903e58fda5006bda91d98f3453ff72539c9979035ffbf3b8b6e",
        "rank 3 of four workers of vLLM waits in gather 203441, its last call; the others are not heard",
        right=r"[Rr]ank 3 .*#203441\b", never="✔|holds no evidence", held=True, day=7),
    Input("sglangverl106", CRASH, "diagnose",
        "zhaochenyang20/Awesome-ML-SYS-Tutorial#106", "log.txt",
        "691a8fa40f0f22cc002a3649005a57f01fb7ca82eb983fde2bc1313597c8477f",
        "SGLang's scheduler of TP1 hit an exception in step 88 of a training with verl; which is not in these lines",
        right="[Tt]raceback|exception", abstains=UNTOLD, never="✔|holds no evidence", day=7),
    Input("verl1420", WATCHDOG, "diagnose",
        "verl-project/verl#1420", "log.txt",
        "dc4a8030d30e72bf622f7193401055834cb011e7fc9c51ab94fe7e1d8817223d",
        "rank 3 of the group mesh_tp, named Rank7 before it, waits in all-reduce 3 for ten minutes, its last call",
        right=r"[Rr]ank [37] .*#3\b", never="✔|holds no evidence", held=True, day=7),
    Input("llamafactory5471", CRASH, "diagnose",
        "hiyouga/LlamaFactory#5471", "log.txt",
        "951414e42db0b4da318ab4c4a634ec025c5a5f08c4a7cf6cfffb1b4eeaf05917",
        "torchrun starts LLaMA-Factory, whose launcher fails in an import; why is not in these lines",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=7),
    Input("llamafactory2902", WATCHDOG, "diagnose",
        "hiyouga/LlamaFactory#2902", "log.txt",
        "d7ca939ab0d9aede2836c8219f6116cc8d2cdadc118728c22905e28bea15208a",
        (
            "rank 0 waits in all-reduce 1516 (25,427,968 elements), rank 1 in all-reduce 1517 (one element), ten "
            "minutes each"
        ),
        right=r"1516\b[\s\S]*1517\b", never="✔|holds no evidence", held=True, day=7),
    Input("tracking3", CRASH, "diagnose",
        "zhen-he/tracking-by-animation#3", "log.txt",
        "7ef0dc604048dc9c4dd9b77102ed73ff6f9ad6abf2d54cea530371bdbfe61d57",
        "out of memory on the GPU (THC's error 2), in a forward pass",
        right="GPU memory", never="✔|holds no evidence", day=7),
    Input("solo8", CRASH, "diagnose",
        "WXinlong/SOLO#8", "log.txt",
        "abfca2d3d00df1d15ba79582f70064cdc6979a055b0963e16580b6cf2bbd6e01",
        "DDP's RuntimeError that some parameters took no part in the loss",
        right="finished reduction|not used|unused", never="✔|holds no evidence", held=True, day=7),
    Input("instanseg138", CRASH, "diagnose",
        "instanseg/instanseg#138", "log.txt",
        "866dce34db9f06ed2fefaa43c9ab3e2931c405597d57874547a54f93b7d4ad42",
        "a RuntimeError of the TorchScript interpreter; what failed in it is not in these lines",
        right="RuntimeError|TorchScript", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=7),
    Input("tracer41", CRASH, "diagnose",
        "Karel911/TRACER#41", "log.txt",
        "6d5d89c9315aab188f5f35866ab87403745655bf8be334b277350516b5cf6316",
        "a traceback of a training under DataParallel whose last lines are missing",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=7),
    Input("stylegan164", CRASH, "diagnose",
        "lucidrains/stylegan2-pytorch#164", "log.txt",
        "6676820ae45e3a0932a68c2501301d9c511c3c664d454e65f6b8bd43b32cbab8",
        "a traceback of a training on Windows whose last lines are missing",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=7),
    Input("espnet144", CRASH, "diagnose",
        "espnet/espnet#144", "log.txt",
        "b56e55b29cf9c1a38a4b1b7ed07e7cc51d555070f21342d1d8729edd54120d2b",
        "CUDA error 30 (unknown error) as the model goes to its GPU; the end of the traceback is missing",
        right="[Ee]rror.?30|unknown error|CUDA|[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=7),
)
# fmt: on
