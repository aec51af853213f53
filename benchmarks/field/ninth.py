"""Threads and files of a ninth day that tell of a failure, a sample by rules (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CRASH, JAX, OTHER_LOG, UNTOLD, WATCHDOG, Input

# fmt: off
NINTH: tuple[Input, ...] = (
    Input("trl2879", CRASH, "diagnose",
        "huggingface/trl#2879", "log.txt",
        "93c52d4c1febfc3a6464e5e2773a28d2a520375584f4fc1c2ca572e3f9517238",
        (
            "torchrun under TRL: local rank 3 was killed (exit code -9), and torchrun ended the three others; who "
            "killed it is not in these lines"
        ),
        right=r"[Rr]ank 3\b.*(SIGKILL|killed|-9)",
        never=r"✔|holds no evidence|Ranks? [0-2]\b",
        root=r"[Rr]ank 3\b.*(SIGKILL|killed|-9)", day=9),
    Input("verl4006", CRASH, "diagnose",
        "verl-project/verl#4006", "log.txt",
        "10712ee833c6f394d1eb5814dc66aea8008c0da07a8f6b7d9a15caef1729d2be",
        "a worker of verl under Ray could not initialize a TMA descriptor (CUDA error 700), twice",
        right="TMA descriptor", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="TMA descriptor", held=True, day=9),
    Input("openrlhf1193", CRASH, "diagnose",
        "OpenRLHF/OpenRLHF#1193", "log.txt",
        "4a8a2bd9ea90e0e8ebe78a0805c441b9bd1533c86f652259f4bc184c2770d0c3",
        "vLLM's engine under OpenRLHF failed in collective_rpc; its traceback is cut off",
        right="collective_rpc|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="collective_rpc", day=9),
    Input("axolotl2791", CRASH, "diagnose",
        "axolotl-ai-cloud/axolotl#2791", "log.txt",
        "9bffa9bcc14d994ce982a93db3e5016c83f4d9dc2bf33e3cd39dfa1cd2a661d7",
        (
            "torchrun's report under axolotl: rank 1 ended with exit code 1, and no other failed; why is not in "
            "these lines"
        ),
        right=r"[Rr]ank 1\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 1\b.*exit code 1", day=9),
    Input("llamafactory8031", CRASH, "diagnose",
        "hiyouga/LlamaFactory#8031", "log.txt",
        "d45753f75aada9a5003d70bfcaa6982829cf2b261288da7488e451a083a23474",
        "torchrun says that local rank 6 (pid 125052) ended with exit code 1; why is not in these lines",
        right=r"[Rr]ank 6\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 6\b.*exit code 1", held=True, day=9),
    Input("swift3669", CRASH, "diagnose",
        "modelscope/ms-swift#3669", "log.txt",
        "2d61f2e21d1915ae2175e137e2b71db13acdda005544d3fe7908b9218b0c6ba3",
        "torchrun says that local rank 0 (pid 3328122) ended with exit code 1; why is not in these lines",
        right=r"[Rr]ank 0\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 0\b.*exit code 1", held=True, day=9),
    Input("oevortex8", CRASH, "diagnose",
        "OEvortex/unsloth#8", "log.txt",
        "26e65babafc3bc5a223fae318f253bfd9a9cad956aa89c0796453c249cda8c22",
        (
            "four ranks start under torchrun; a traceback begins in gpu.py, line 10, in the import of unsloth, "
            "and is cut off"
        ),
        right=r"[Tt]raceback|gpu\.py", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"gpu\.py|from unsloth import", held=True, day=9),
    Input("nequip450", CRASH, "diagnose",
        "mir-group/nequip#450", "log.txt",
        "77bd1f797c5bd9d334d800a9258b1cec2ace1d79c52618b8b617ba4b71c19a10",
        (
            "a traceback of nequip-train in its trainer's batch_step, in the call of the model; its error is cut "
            "off"
        ),
        right="[Tt]raceback|batch_step", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"batch_step|data_for_loss|trainer\.py", held=True, day=9),
    Input("colossal2642", CRASH, "diagnose",
        "hpcaitech/ColossalAI#2642", "log.txt",
        "d9ff11dae5bdbadd7b37d29cbb293f552aa307398e9443eabb35fa5f894c008a",
        (
            "torchrun's report under ColossalAI: rank 0 ended with exit code 1; ColossalAI says that it failed to "
            "run torchrun"
        ),
        right=r"[Rr]ank 0\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 0\b.*exit code 1", day=9),
    Input("tacotron16", CRASH, "diagnose",
        "NVIDIA/tacotron2#16", "log.txt",
        "792d37528c3c5a9605b88645186a2c48a63cd515e213d689d3629f6951d0abb6",
        "the launcher of four GPUs could not open the file of a rank's log: the folder logs does not exist",
        right="FileNotFoundError|No such file or directory: 'logs",
        never="✔|holds no evidence",
        root="FileNotFoundError|No such file or directory: 'logs", held=True, day=9),
    Input("torchtitan1570", CRASH, "diagnose",
        "pytorch/torchtitan#1570", "log.txt",
        "46cb07d67d5017cffa08276554b960aa01f4c4813530af601e148f8b272e1866",
        "torchrun's ChildFailedError: torchtitan.train failed; which rank and why is cut off",
        right=r"ChildFailedError|torchtitan\.train|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"ChildFailedError|torchtitan\.train", held=True, day=9),
    Input("diffusers1068", CRASH, "diagnose",
        "huggingface/diffusers#1068", "log.txt",
        "a942d9bde8c18eda5c72eadbf321b245fc2f2e8813b2e86a3658d66c3b8ef5ef",
        "a traceback of train_dreambooth.py in StableDiffusionPipeline.from_pretrained; its error is cut off",
        right="[Tt]raceback|from_pretrained", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="from_pretrained|train_dreambooth", held=True, day=9),
    Input("fairseq708", CRASH, "diagnose",
        "facebookresearch/fairseq#708", "log.txt",
        "78c99f60bcec1b247a4989ec6a3898ad40cb540f4a5d273cf9792c9e968c26eb",
        (
            "fairseq ran out of memory in one batch (332 MiB of GPU 0) and skipped it; then fairseq-train ended "
            "in a traceback that is cut off"
        ),
        right="out of (GPU )?memory|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence|✖",
        root="fairseq-train|load_entry_point|out of (GPU )?memory", day=9),
    Input("habana10", OTHER_LOG, "diagnose",
        "HabanaAI/Model-References#10", "log.txt",
        "47228c6bc2e7638c02ca3728cc94c96c16e23b1d51c10489d00827347b9a54da",
        "Gaudi could not allocate a workspace of 14,493,510,400 bytes in the backward pass",
        right="SYNHELPER|workspace Allocation|memory",
        never="✔|holds no evidence",
        root="SYNHELPER|workspace Allocation|14493510400|14.5 GB|13.5 GiB", day=9),
    Input("xtuner80", CRASH, "diagnose",
        "InternLM/xtuner#80", "log.txt",
        "50c7190a1a222a8e97ee6f73926510dda6a5a86c1b49330c7d4d3b1e42cf9cce",
        (
            "torchrun says that local rank 0 (pid 5406) ended with exit code -7, a bus error; the report is cut "
            "off"
        ),
        right=r"[Rr]ank 0\b.*(SIGBUS|[Bb]us error|-7)",
        never="✔|holds no evidence",
        root=r"[Rr]ank 0\b.*(SIGBUS|[Bb]us error|-7)", held=True, day=9),
    Input("tinyllama194", CRASH, "diagnose",
        "jzhang38/TinyLlama#194", "log.txt",
        "563ad671e1647bcf400ad8caa1a2e0272a9716b1f3b013622cda7b3d98fe59f8",
        "a traceback of Lightning's command line, its frames not indented; its error is cut off",
        right="[Tt]raceback|lightning", abstains=UNTOLD,
        never="✔|holds no evidence|✖",
        root=r"lightning|click|core\.py|ctx\.invoke", held=True, day=9),
    Input("ray26136", CRASH, "diagnose",
        "ray-project/ray#26136", "log.txt",
        "e73d37c06d804d75769523191333744381cd98152fa59e4da737678f96eb99bb",
        (
            "a traceback of a driver of Ray Train, raised by ray.get for a worker; the name of the exception is "
            "cut off"
        ),
        right="[Tt]raceback|ray_sgd_training", abstains=UNTOLD,
        never=r"✔|holds no evidence|ray\.e\b",
        root="as_instanceof_cause|ray_sgd_training|ray/_private", day=9),
    Input("flax3831", JAX, "diagnose",
        "google/flax#3831", "log.txt",
        "4c6d6bc68b5c1c53b2fb6ac89cea24a03e3833da3dc06f1cab54b20bd96928f5",
        (
            "XLA's verifier refused a program that JAX compiled for 8 GPUs: a shape of [128,48,384] where "
            "[128,1,384] was expected"
        ),
        right="XlaRuntimeError",
        never="✔|holds no evidence",
        root="XlaRuntimeError|shape equal", day=9),
    Input("openr1620", WATCHDOG, "diagnose",
        "huggingface/open-r1#620", "log.txt",
        "147304d42ca4c4d604612874f5571745a197619fee1f7c0f5b0e817a3b410bb0",
        (
            "ranks 1 to 6 wait in broadcast 4 (112 elements) for 30 minutes; the lines are wrapped in the middle "
            "of words"
        ),
        right=r"#4\b",
        never="✔|holds no evidence|Ranks 0, 4",
        root=r"#4\b", held=True, day=9),
    Input("rocm2494", OTHER_LOG, "diagnose",
        "ROCm/legacy-rocm-build#2494", "log.txt",
        "ee4dcd07a0ddb36d5ee4d5c850d23ad8f36fb0b7b112f7861941090a67e3fa71",
        "the kernel's log of an AMD GPU: the shaders' sequencer reports errors twelve times within 0.2 ms",
        right="sq_intr|amdgpu", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="sq_intr", held=True, day=9),
    Input("gpustack2021", OTHER_LOG, "diagnose",
        "gpustack/gpustack#2021", "log.txt",
        "f25925aa9d764dbf69dd4a0aae8f1c23471ab5f5c5f75ccf34412ee5f4c58e73",
        (
            "MindIE on four Ascend NPUs: HcclCommInitRootInfo failed on rank 1 with error 2, so the all-gather "
            "has no communicator"
        ),
        right="HcclCommInitRootInfo", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="HcclCommInitRootInfo", held=True, day=9),
    Input("vicuna113", CRASH, "diagnose",
        "Facico/Chinese-Vicuna#113", "log.txt",
        "5553835328ca1d5e7438482f4fa2a630770ec8b5382bd16ccb55412567578976",
        "torchrun says that local rank 0 (pid 1622990) ended with exit code 1; why is not in these lines",
        right=r"[Rr]ank 0\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 0\b.*exit code 1", held=True, day=9),
    Input("trl3310", CRASH, "diagnose",
        "huggingface/trl#3310", "log.txt",
        "bbb37d8ee1afe22cadf05d7ad8508fb1ee59c0f1ff4965d7c45ea67a9520a6c7",
        (
            "five engines of vLLM under TRL's server got a fatal signal from their workers; the server's "
            "traceback is cut off"
        ),
        right="fatal signal|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="fatal signal", day=9),
    Input("verl988", CRASH, "diagnose",
        "verl-project/verl#988", "log.txt",
        "eff51d0ef305ee4fb723af76303ae0c25caafe93d1dc7c3e8e930bd2d5d991ab",
        "a device-side assert on a GPU ended a process of torch",
        right="device-side assert",
        never="✔|holds no evidence",
        root="device-side assert", day=9),
    Input("axolotl1670", CRASH, "diagnose",
        "axolotl-ai-cloud/axolotl#1670", "log.txt",
        "8f2b66385625671db40b80b3be365d08c8d0eb8c995d2a599e5e7547d499cf96",
        "Python does not find the module axolotl; the two warnings of torch's sockets are harmless",
        right="No module named 'axolotl'|ModuleNotFoundError",
        never="✔|holds no evidence|address family",
        root="No module named 'axolotl'|ModuleNotFoundError", day=9),
    Input("unsloth4360", CRASH, "diagnose",
        "unslothai/unsloth#4360", "log.txt",
        "126a96b41d525050e021ddb03d121b72dc0cc552a9f63e14b45ea82a4c53ce22",
        "a NotImplementedError in trainer.train() as a notebook shows it; its words are cut off",
        right="NotImplementedError",
        never="✔|holds no evidence",
        root="NotImplementedError", held=True, day=9),
    Input("nanogpt8", CRASH, "diagnose",
        "KellerJordan/modded-nanogpt#8", "log.txt",
        "88f0e87d49fd60963b04f9af8285ca6202c08ab1d8a4cccccecdfa5ccb7cedc9",
        (
            "torchrun says that local rank 5 (pid 119) ended with exit code 1, and ended another; why is not in "
            "these lines"
        ),
        right=r"[Rr]ank 5\b.*exit code 1",
        never="✔|holds no evidence|ended from outside",
        root=r"[Rr]ank 5\b.*exit code 1", held=True, day=9),
    Input("torchtitan216", CRASH, "diagnose",
        "pytorch/torchtitan#216", "log.txt",
        "ff3acfa5ecc2291e2b1d00977265f2e90b537cf115078aa6b5411023c232db93",
        (
            "torchrun says that local rank 0 (pid 1554760) ended with exit code 1, behind the end of a message of "
            "torch.compile"
        ),
        right=r"[Rr]ank 0\b.*exit code 1",
        never="✔|holds no evidence",
        root=r"[Rr]ank 0\b.*exit code 1", day=9),
    Input("medchatbot", CRASH, "diagnose",
        "ititiu20201/medical-chatbot@4c4229f1a7f8ec81a95465bccb1c8e52eb490c67", "slurm_output.txt",
        "a097821b613c28dcb35d1760ccc1ab868aaae2a461f0852afd6791f5b52b6723",
        (
            "a job of Slurm finds neither its environment nor a command; the training then ended in a TypeError "
            "in the import of scipy; the script goes on to 'Job finished'"
        ),
        right="TypeError",
        never="✔|holds no evidence",
        root="TypeError", day=9),
    Input("trans4mom", CRASH, "diagnose",
        "firoozye/trans4mom@55d4579404223a6eae7e27d58846ddb7a0aca569", "logs/train.err",
        "31bf8b68ac287e5b70f7ba6f2c7ed2688df88f78234eb8276bab14c7b987074e",
        "Lmod does not know the modules python/3.10 and cuda/11.8, which the job loads",
        right="Lmod|module", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"Lmod|unknown|cuda/11\.8|python/3\.10", held=True, day=9),
)
# fmt: on
