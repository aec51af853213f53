"""Logs of a fifth day that tell of a failure."""

from __future__ import annotations

from benchmarks.field.input import CRASH, JAX, OTHER_LOG, STACKS, UNTOLD, WATCHDOG, Input

# fmt: off
FIFTH_LOGS: tuple[Input, ...] = (
    Input("gpud_fabric", CRASH, "diagnose",
        "leptonai/gpud@4a8de33a3f02e207f39e9023d67125592d599731",
        "components/accelerator/nvidia/fabric-manager/testdata/fabricmanager.log",
        "d824fbf0b70dc6f261d4ba23adda8bcc09fd7848deee2d24b59b0adabe8dbab8",
        (
            "the fabric manager sets groups up and down; one ERROR line: a non-fatal error 12028 of an "
            "NVSwitch"
        ),
        right="NVSwitch", abstains=UNTOLD, never="✖|✔|holds no evidence", held=True, day=5),
    Input("gpud_xid119", CRASH, "diagnose",
        "leptonai/gpud@4a8de33a3f02e207f39e9023d67125592d599731",
        "components/accelerator/nvidia/xid/testdata/dmesg-with-xid-119.log",
        "56c02a03972f5f5c6bd10b327d3e83a86f90136eda1a25a8280bb9f015cad8c4",
        "Xid 119: the GPU's own processor (GSP) at 9b:00 does not answer; it likely needs a reset",
        right="hardware|GSP", never="✔", day=5),
    Input("gpud_iso", CRASH, "diagnose",
        "leptonai/gpud@4a8de33a3f02e207f39e9023d67125592d599731",
        "components/memory/testdata/dmesg.decode.iso.log",
        "bec76a88a94a081e090f110f7b1d4762641a4e5ae1890eb964ef46feed39a529",
        (
            "dmesg with levels and ISO times: Xid 13, an address out of range, and 43 of pt_main_thread; "
            "later the kernel kills vector, httpd and python for memory"
        ),
        right="illegal memory access|hardware|kernel fail on its GPU|host's memory",
        never="✔|holds no evidence", held=True, day=5),
    Input("gpud_pstore", CRASH, "diagnose",
        "leptonai/gpud@4a8de33a3f02e207f39e9023d67125592d599731",
        "pkg/pstore/testdata/7530486857247/dmesg.txt",
        "8a8ffccbbe89b2998d76e509095ab9fb802e8803cc6771aff3c0c6bc28b420dd",
        "a kernel panic, set off by a test module",
        right="[Kk]ernel panic", abstains=UNTOLD, never="✔|holds no evidence", day=5),
    Input("longform", CRASH, "diagnose",
        "domenicrosati/longform_edit_model_evals@4ebb3790883d2100ed917c1cc9acd285e76aa52c",
        "slurm.out",
        "fd7368aa33faa095e143dee323da128aa34e50e93584dc982d5df4811662e5b0",
        (
            "Slurm cancelled job 20942500 at its time limit; before it 800 kB of generated prose with "
            "killed, error and failed in it"
        ),
        right="ended by Slurm at the job's time limit.*20942500", never="✔", day=5),
    Input("bris", CRASH, "diagnose",
        "metno/bris-inference@58ad615060d33d365143f1b399e32530ff5f3191",
        "logs/slurm.err",
        "d81c361a5b98632fb5e3d028c73f1dafc99950051dfd62a15f01382d8e3f43f1",
        "the container has no program bris: eight tasks of nid007965 end with exit code 255",
        right="not found|exit code 255", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=5),
    Input("wandb_quota", CRASH, "diagnose",
        "guoyu-zhang/PEFT-TRL-LLMs@3024ed9bda645454911b7e92238bead5591c320b",
        "job_scripts/wandb/run-20231116_215754-sweqjftq/files/output.log",
        "1400887aaece4605636a57b4913d7b4ac2c16a6ec2aa08881ee96f40c7a37c6c",
        "the trained model could not be saved: disk quota exceeded",
        right="the disk or the quota is full", never="✔", held=True, day=5),
    Input("wandb_internal", CRASH, "diagnose",
        "guoyu-zhang/PEFT-TRL-LLMs@3024ed9bda645454911b7e92238bead5591c320b",
        "job_scripts/wandb/run-20231116_215754-sweqjftq/logs/debug-internal.log",
        "ea641f9eb752266634ff842ce15444ed5d9a54922dec549ca27a54883bc48d2c",
        "wandb's own log of the same run: the program ended with exit code 1; why is not here",
        right="exit code 1", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=5),
    Input("f5tts728", WATCHDOG, "diagnose",
        "SWivid/F5-TTS#728",
        "log.txt",
        "1dfc6cb53f2f07076a53eefa9c17bccd79ff9bfd70bd080ece3b09737e97e0fa",
        "rank 3 waits in all-reduce 61, its last call; what the others do is not here",
        right=r"all_reduce #61\b", never="✔", day=5),
    Input("torchtune2093", WATCHDOG, "diagnose",
        "meta-pytorch/torchtune#2093",
        "log.txt",
        "fb84a8a9ac66392ee24f378200cc43aa04a71cc5118eec43ef4b39a15bda2454",
        (
            "rank 0 waits in all-gather 619725, which rank 3 has finished; rank 3 waits in reduce-scatter "
            "619727, for which rank 0 has not come"
        ),
        right="#619725 .*though rank 3 finished it", never="✔|holds no evidence|nobody else waits", day=5),
    Input("torchtune1165", WATCHDOG, "diagnose",
        "meta-pytorch/torchtune#1165",
        "log.txt",
        "721ef8e0f53abd8d007fb0fbc93b7fb58abf11afd1dea528701b275ed535c57c",
        (
            "ranks 1, 2 and 3 of 4 wait in all-gather 15037; rank 0 is not here; lines are broken at 160 "
            "characters"
        ),
        right="#15037", never="✔|holds no evidence", day=5),
    Input("fastvideo242", WATCHDOG, "diagnose",
        "hao-ai-lab/FastVideo#242",
        "log.txt",
        "e41cf64900ac1c81bc1a208ea3e506a0c154547727be5c7ab3ad39ac6676b20b",
        (
            "rank 0 waits in all-to-all 3369 of a group; what the others do is not here; lines are broken "
            "within words"
        ),
        right="#3369", never="✔|holds no evidence", held=True, day=5),
    Input("fastvideo228", CRASH, "diagnose",
        "hao-ai-lab/FastVideo#228",
        "log.txt",
        "1c09738e149fb48bff1f3d89c19274a540d1008da10c093ad1ecfa43e36a52ae",
        (
            "rank 2 waited 600 s for the store while it prepared data; the end of the traceback is "
            "missing"
        ),
        right="[Rr]ank 2", abstains=UNTOLD, never="✔|holds no evidence", day=5),
    Input("nemo14883", WATCHDOG, "diagnose",
        "NVIDIA-NeMo/Speech#14883",
        "log.txt",
        "85d4f99ad88bc0b27ee7f8a2c4716d198ff8436088aa38290afcd7e783c61d2c",
        (
            "rank 3 timed out in a collective; ranks 5 and 7, which only dump, have finished all their 41 "
            "calls"
        ),
        right="[Rr]ank 3", abstains=UNTOLD, never=r"✔|holds no evidence|ranks? 5[^.]* (wait|hang)s?\b",
        day=5),
    Input("llamafactory6953", WATCHDOG, "diagnose",
        "hiyouga/LlamaFactory#6953",
        "log.txt",
        "864b20fe9888e005cecde6064462a067d9bc59b0d4557c50bcb6f976a7831b62",
        (
            "rank 144's watchdog was stuck for 600 s: a hanging call of NCCL or CUDA, or a lock; which is "
            "not here"
        ),
        right="144", abstains=UNTOLD, never="✔|absent|holds no evidence", held=True, day=5),
    Input("sglang17941", STACKS, "diagnose",
        "sgl-project/sglang#17941",
        "log.txt",
        "b80f93d919829ee02e5d9a039a56a3104ead96b06c22842f4c2ef68cd4af50fa",
        (
            "SGLang's watchdog ended the schedulers of a pipeline after 300 s; stacks by py-spy: stage 2 "
            "waits for a message of another rank"
        ),
        right="[Ww]atchdog", abstains=UNTOLD + "|does not say of which rank", never="✔|holds no evidence",
        day=5),
    Input("sglang3752", WATCHDOG, "diagnose",
        "sgl-project/sglang#3752",
        "log.txt",
        "905a197bdbea2b464247146474207b713abd7a35830e2a5a8f402892b27241b4",
        (
            "the watchdogs of all eight of SGLang's schedulers ran out after 300 s and the server was "
            "killed; why is not here"
        ),
        right="[Ww]atchdog", abstains=UNTOLD + "|[Kk]illed", never="✔|holds no evidence|ran out of",
        held=True, day=5),
    Input("xpu2757", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#2757",
        "log.txt",
        "108b8974d0982b8147486e1802c3b9c3485bb1d3a439931226403c4d93389f9f",
        "an Intel GPU was lost in a test: UR_RESULT_ERROR_DEVICE_LOST",
        right="DEVICE_LOST", never="✔", held=True, day=5),
    Input("ipex780", OTHER_LOG, "diagnose",
        "intel/intel-extension-for-pytorch#780",
        "log.txt",
        "123e49c84deaf5ca20c099a08abf67b0b14a5522ec52f8ab11f7a3215299079a",
        "an Intel GPU was lost while a model was moved to it; the traceback is in two pieces",
        right="DEVICE_LOST", never="✔|holds no evidence", day=5),
    Input("applio1019", CRASH, "diagnose",
        "IAHispano/Applio#1019",
        "log.txt",
        "216bffe1072e1ebb55e505f5b49ecc743b840ecd0ab4c12e8394bb6f48a61ca8",
        (
            "Windows: init_process_group with gloo fails, for it finds no network device for the host's "
            "name"
        ),
        right="unsupported gloo device", never="✔", day=5),
    Input("jax23599", JAX, "diagnose",
        "jax-ml/jax#23599",
        "log.txt",
        "4c25539679ab150b5bd516bdb65fd5df892e563e47ac5e922211b00829b80e8c",
        "JAX: task 0's heartbeat timed out, because an allocation took long, says the thread",
        right="heartbeat", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=5),
    Input("llama2jax20", JAX, "diagnose",
        "ayaka14732/llama-2-jax#20",
        "log.txt",
        "138b15e75b5dbc320492873e1528281cbf17302d05e341282b04f4d4280f1b25",
        (
            "JAX: one process of eight was started, so the barrier at the start timed out; tasks 1 to 7 "
            "did not come"
        ),
        right="did not find all ranks|DEADLINE_EXCEEDED", never="✔|holds no evidence", day=5),
    Input("easyr1_185", CRASH, "diagnose",
        "hiyouga/EasyR1#185",
        "log.txt",
        "6b83d216518d6f0ee85f905fd2fb85cec68fc7d4909bbe0acabe4ccd18f49613",
        "Ray killed a worker, because its node was short of memory",
        right="ran out of the host's memory", never="✔", held=True, day=5),
    Input("vllm1160", CRASH, "diagnose",
        "vllm-project/vllm#1160",
        "log.txt",
        "1401aa8d79538d54c2440af7c941701c587a08698b31d1cc74db366dbcbe1cff",
        "the same of two workers, lines broken within words, escapes written as #033",
        right="ran out of the host's memory", abstains=UNTOLD, never="✔|holds no evidence", held=True,
        day=5),
    Input("verlagent95", CRASH, "diagnose",
        "langfengQ/verl-agent#95",
        "log.txt",
        "7085249c59744cd158b42a9725e3d69277bce7d36b7913e0da01bda052994735",
        (
            "Ray killed rank 5's worker at 212.88 of 224 GB of its node; the traceback's head is missing"
        ),
        right="ran out of the host's memory", never="✔|GPU memory", held=True, day=5),
    Input("horovod1012", WATCHDOG, "diagnose",
        "horovod/horovod#1012",
        "log.txt",
        "78f6aaedaec41f2f65b8a597f3fb69e59ed952b8149ae26580178eaf998ec6cd",
        "Horovod: rank 1 has not come to the first broadcasts for 60 s and longer",
        right="[Rr]ank 1", abstains=UNTOLD, never="✔|holds no evidence", day=5),
    Input("horovod334", WATCHDOG, "diagnose",
        "horovod/horovod#334",
        "log.txt",
        "40171557d37365a544eeb51ff3927bafdf2a4873a109e7477c2c9543f95bd0a5",
        "Horovod: ranks 1 to 5 and 7 wait in all-reduces; ranks 0 and 6 have not come",
        right="[Rr]anks 0(,| and) 6", abstains=UNTOLD, never="✔|holds no evidence", day=5),
    Input("mps341", CRASH, "diagnose",
        "gensyn-ai/rl-swarm#341",
        "log.txt",
        "6b71a0e3970905d1951cb045f037fcffec4bd8a2569e099e7cffa89b03b15261",
        "an Apple GPU: out of memory (MPS), 27.2 GB allowed, 27 in use",
        right="ran out of GPU memory", never="✔", held=True, day=5),
    Input("habana1426", OTHER_LOG, "diagnose",
        "huggingface/optimum-habana#1426",
        "log.txt",
        "cb6f09f2344dabca7a80d07c87ac2637535f1d7ebafb109203604b6e9cfb3bc8",
        "Gaudi: the graph's compilation failed on ranks 2 and 6",
        right="Graph compile failed", never="✔", held=True, day=5),
    Input("hccldemo44", OTHER_LOG, "diagnose",
        "HabanaAI/hccl_demo#44",
        "log.txt",
        "30491f42dadd51340d7bd086e106b1cdc322448fc6f708f3c2ea6552696a2636",
        "Gaudi: the device was not acquired, because the server's type is invalid",
        right="synDeviceAcquire|Invalid server type", abstains=UNTOLD, never="✔|holds no evidence",
        held=True, day=5),
    Input("vllmascend3717", OTHER_LOG, "diagnose",
        "vllm-project/vllm-ascend#3717",
        "log.txt",
        "8f50347714f62d9f0b9df045e826547733b1487bc4984d9d5e5f54ddbaa5cc54",
        (
            "vLLM's engine DP1 met a fatal error while it waited for its worker; the end of the traceback "
            "is missing"
        ),
        right="EngineCore", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=5),
    Input("swift4302", CRASH, "diagnose",
        "modelscope/ms-swift#4302",
        "log.txt",
        "828013355e1a392a1b5fdb56e585e44a93af27cb4a67619728df6d993a0b7602",
        "local rank 3 ended with -11, a segmentation fault; torchrun ended the others",
        right="Rank 3 died.*SIGSEGV", never="✔", held=True, day=5),
    Input("swift6849", CRASH, "diagnose",
        "modelscope/ms-swift#6849",
        "log.txt",
        "816e251c715db0a06040dec4c1743cb80547925f0e554adb417e79618de2a517",
        (
            "torchrun's report upside down: rank 19 (local rank 3) aborted (-6) at the end of a training"
        ),
        right="SIGABRT", abstains=UNTOLD, never=r"✔|holds no evidence|[Rr]ank 3\b", held=True, day=5),
    Input("rocm10195", CRASH, "diagnose",
        "sgl-project/sglang#10195",
        "log.txt",
        "e15b3c5004802f60fe16dbdb8f91246215a8fa62c2a6d8561df9a84f7b103f49",
        "amdgpu: page faults of python3's kernels on several MI300",
        right="illegal memory access|page fault", abstains=UNTOLD, never="✔|holds no evidence", held=True,
        day=5),
    Input("rocm1535", CRASH, "diagnose",
        "ROCm/legacy-rocm-build#1535",
        "log.txt",
        "4dfe6957054a5c03f4524866bfa31f4bd94bd4f22c7ec1499fb7066d9bcaea51",
        "ROCm: a kernel's access to memory that is not there, and the process aborted",
        right="illegal memory access", never="✔", day=5),
    Input("t5tpu1", JAX, "diagnose",
        "megagonlabs/t5-japanese#1",
        "log.txt",
        "6a19b18b41570830c7a9145d1e73d0925775d6fff0f4fd2dfaefa886b05f29fb",
        (
            "TensorFlow on a TPU: the session is shut down, because a worker was lost; the thread says "
            "that it was preempted"
        ),
        right="lame workers", abstains=UNTOLD, never="✔|✖|holds no evidence", day=5),
)
