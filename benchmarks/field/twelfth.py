"""Failing texts of a twelfth day, a sample by rules (samples.md, docs/field.md): short pastes."""

from __future__ import annotations

from benchmarks.field.input import CRASH, UNTOLD, WATCHDOG, Input

# fmt: off
TWELFTH: tuple[Input, ...] = (
    Input("lf7032", CRASH, "diagnose",
        "hiyouga/LlamaFactory#7032", "log.txt",
        "339d068c59e3e6f035c8f35b7ee04ccb7f92e3c2b30315a2cd53ac2d5d6f65ef",
        "torchrun reports that rank 0 ended with exit code 1; why is not in these lines",
        right="[Rr]ank 0|exit", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Rr]ank 0|exit", day=12),
    Input("axolotl3476", WATCHDOG, "diagnose",
        "axolotl-ai-cloud/axolotl#3476", "log.txt",
        "30482a3aba3f10e6eb98d39261d0ec342f85a312bb163f0ab60969a5d0391937",
        (
            "rank 1 was told of a collective that timed out on its own node (855 enqueued, 12 completed), and "
            "rank 0 says that NCCL operations failed or timed out; copied from a terminal that broke the lines"
        ),
        right="[Tt]ime(d )?out|855", abstains=UNTOLD,
        never="✔|holds no evidence|left no evidence at all",
        root="[Tt]ime(d )?out|855", held=True, day=12),
    Input("ptex1279", CRASH, "diagnose",
        "pytorch/examples#1279", "log.txt",
        "7d9a9c8cf50bbc127d07b8a555431cd3a86a0db3e4fc61e7d4741099edd7e51f",
        (
            "torchrun reports that rank 0 ended with exit code 1 on d-9-11-1, twice the same block; why is not "
            "in these lines"
        ),
        right="[Rr]ank 0|exit", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]anks? 1",
        root="[Rr]ank 0|exit", held=True, day=12),
    Input("wan611", CRASH, "diagnose",
        "deepbeepmeep/Wan2GP#611", "log.txt",
        "80691ed74331b6ddd68075e6c8dbbbbf663ec092eb2f786452d4b2495bd22b1b",
        (
            "GPU 0 ran out of memory: 3.27 GiB asked, 168 MiB free, 4.49 GiB reserved by PyTorch but not "
            "allocated; a second GPU is idle"
        ),
        right="[Mm]emory", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"3\.27|memory", held=True, day=12),
    Input("lf5217", CRASH, "diagnose",
        "hiyouga/LlamaFactory#5217", "log.txt",
        "0d1bf02baa1caca20ae016aaf173e1c50c715445935f9f71741d43859eb4e6c1",
        "the shell did not find torchrun (under sudo, which has another PATH)",
        right="not found", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="torchrun", day=12),
    Input("ds4000", CRASH, "diagnose",
        "deepspeedai/DeepSpeed#4000", "log.txt",
        "8be501433b11a039b73445659f6e13d07ee5557c49e40247672c3ec6729af759",
        (
            "DeepSpeed's launcher killed its processes 3966 and 3967; its line with the return code is cut off, "
            "the prose says -7 and -11; why is not in these lines"
        ),
        right="return code|-7|-11|[Kk]illing subprocess|3966|launch|[Ss]ignal", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="return code|-7|-11|[Kk]illing subprocess|3966|[Ss]ignal", day=12),
    Input("accel1923", CRASH, "diagnose",
        "huggingface/accelerate#1923", "log.txt",
        "8cd402c36b4b38d19da8dedeb0b25aa1711de2c6944f7596020af48fac914709",
        (
            "accelerate launch has a traceback while it loads its configuration file (config_args.py); the error "
            "is cut off"
        ),
        right="[Tt]raceback|config_args|load_config", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="config_args|load_config", day=12),
    Input("earthform73", CRASH, "diagnose",
        "amazon-science/earth-forecasting-transformer#73", "log.txt",
        "c5cf6292fcbd6c8691cc4d6a3f2a6e779413274f207a557a303c51acad71fe68",
        (
            "AttributeError: LightningDistributedModule has no attribute module, with an AssertionError that the "
            "model is no DistributedDataParallel"
        ),
        right="AttributeError|LightningDistributedModule|AssertionError", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="LightningDistributedModule|DistributedDataParallel", day=12),
    Input("megatron1032", CRASH, "diagnose",
        "NVIDIA/Megatron-LM#1032", "log.txt",
        "990856baa736f995a66bde12c0478c246fbaf1ce2f56887fe80420fab4966d8b",
        (
            "rank 0 has a traceback while Megatron loads a distributed checkpoint (checkpointing.py); the error "
            "is cut off"
        ),
        right="[Tt]raceback|[Rr]ank 0|checkpoint", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]anks? 1",
        root="checkpoint", day=12),
    Input("verl4921", CRASH, "diagnose",
        "verl-project/verl#4921", "log.txt",
        "989ee270ccb1da8f4d214835252f886ae4328e93c221bb4cd83deea966541fbe",
        (
            "a Ray actor (WorkerDict, pid 87687) died unexpectedly while vLLM's server went to sleep; why is not "
            "in these lines"
        ),
        right="[Aa]ctor|87687|WorkerDict", abstains=UNTOLD,
        never="✔|holds no evidence|ran out of (host )?memory|an error of the program",
        root="[Aa]ctor (has )?died|ActorDied|87687|WorkerDict", held=True, day=12),
    Input("easyr82", CRASH, "diagnose",
        "hiyouga/EasyR1#82", "log.txt",
        "b233ed77a3b0e9142abf01ea91de5f934f99b4acfeabb2a0f7de943805c8e3d1",
        "frames of a traceback while vLLM's LLM is made in verl's rollout (pid 2462788); the error is cut off",
        right="[Tt]raceback|executor_base|vllm_rollout|llm_engine", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="executor_base|vllm_rollout|llm_engine", held=True, day=12),
    Input("pt108404", CRASH, "diagnose",
        "pytorch/pytorch#108404", "log.txt",
        "f88c9ee16dead63095f78856766aab9b476c554e16a946e7d249733e69d52f00",
        (
            "RuntimeError: HIP error, the operation cannot be performed in the present state, when a tensor on "
            "the second AMD GPU is read"
        ),
        right="HIP error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="HIP error", held=True, day=12),
    Input("nccl1129", CRASH, "diagnose",
        "NVIDIA/nccl#1129", "log.txt",
        "6ccec142c728a783c639f1b8ff51c7d463a9fab4e7e4ecdc8049fc0de0a2bac4",
        "NCCL failed to make a queue pair (ibv_create_qp) on node08 over InfiniBand in a container",
        right="ibv_create_qp", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="ibv_create_qp", held=True, day=12),
    Input("tune392", CRASH, "diagnose",
        "meta-pytorch/torchtune#392", "log.txt",
        "94feb30ba5b8d0da4202355b1a631038351be85bb437c0f1fffb15ebbc69b71d",
        "the port 29500 is in use: another job on the same machine has it",
        right="in use|29500", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="in use|29500", day=12),
    Input("dlfip240", CRASH, "diagnose",
        "WZMIAOMIAO/deep-learning-for-image-processing#240", "log.txt",
        "18cc02ff482d6b09239b77dc3d484cf3982fc996cfe9cb5e9125b688d6f64c95",
        "data-loader workers 18894 and 18897 died of a bus error: too little shared memory (shm)",
        right="[Dd]ata-?[Ll]oader|shared memory|shm|[Bb]us error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="shared memory|shm|[Bb]us error", held=True, day=12),
    Input("pt136228", CRASH, "diagnose",
        "pytorch/pytorch#136228", "log.txt",
        "3f1754beacf7e4a6bb2392170b8c07ef8f36a28db951891e7f759a9cdcbf4e25",
        (
            "loading a full state dict into FSDP2 with tensor parallelism failed: size mismatch for weight, [2, "
            "17] in the checkpoint, [1, 17] in the model"
        ),
        right="size mismatch|state_dict", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="size mismatch|state_dict", day=12),
    Input("ray47461", CRASH, "diagnose",
        "ray-project/ray#47461", "log.txt",
        "bf2ab8306f7636bbda291750187616b683c4a7a88ef56d48b7a01f8b553f836b",
        (
            "a Ray worker (pid 89513) died unexpectedly, and TorchTrainer's worker 0 failed; why is not told, "
            "Ray lists what might be"
        ),
        right="89513|died|[Ww]orker", abstains=UNTOLD,
        never="✔|holds no evidence|ran out of (host )?memory|was killed by",
        root="89513|died|[Ww]orker 0", day=12),
    Input("gfpgan154", CRASH, "diagnose",
        "TencentARC/GFPGAN#154", "log.txt",
        "a29dc61631177753e5d327065ec526878a4e9e125c568d88090ba9a423eb67d5",
        "NCCL error: invalid usage (ncclInvalidUsage), from several processes at once",
        right="invalid usage|ncclInvalidUsage", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="invalid usage|ncclInvalidUsage", held=True, day=12),
    Input("pt67978", CRASH, "diagnose",
        "pytorch/pytorch#67978", "log.txt",
        "1c1ebeb6e99aac8c597a87e54a2344a438da317b0afbac671abf14086568fb5e",
        "frames of a traceback of train.py in the model's forward under DDP; the error is cut off",
        right=r"[Tt]raceback|train\.py|module\.py", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"train\.py|module\.py", day=12),
    Input("unitraj23", CRASH, "diagnose",
        "vita-epfl/UniTraj#23", "log.txt",
        "789d93c036f898920b029077f1dc505bec0ddc200787306c9a4a6fa42c482ad7",
        (
            "wandb.errors.Error: a rank other than 0 logs an image though wandb.init() ran on rank 0 alone "
            "(base_model.py, line 267)"
        ),
        right="wandb", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="wandb", held=True, day=12),
    Input("mmdet3d488", CRASH, "diagnose",
        "open-mmlab/mmdetection3d#488", "log.txt",
        "b60b0b54f8fc6f2b237c664d36e6d4e006450dd1cbe5c2a0131b946171234fda",
        "DDP: the model has parameters that were not used for the loss",
        right="find_unused_parameters|not used|unused|finished reduction", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="find_unused_parameters|not used|unused|finished reduction", day=12),
    Input("cuad9", CRASH, "diagnose",
        "TheAtticusProject/cuad#9", "log.txt",
        "bc199d17cdadf9f6cdeaca9590c7db68b829ceab110e0db00d618e63675c9024",
        "NCCL Error 1: unhandled cuda error, at the begin of the evaluation; the cause is not in these lines",
        right="unhandled cuda error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="unhandled cuda error", day=12),
    Input("firefly32", CRASH, "diagnose",
        "yangjianxin1/Firefly#32", "log.txt",
        "e5096038a1ade6949c59b97fff129f4a0a50ea2dc4ab1001fee28db9fe1807fb",
        (
            "local rank 0 ended in an Exception of the tokenizer's conversion: expected value at line 1 column "
            "1; torchrun reports exit code 1"
        ),
        right="expected value", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="expected value", day=12),
    Input("unsloth4", CRASH, "diagnose",
        "OEvortex/unsloth#4", "log.txt",
        "d0db1ae93a9194d343991d8256d6b131ec6914eafc747648676d260970f49642",
        "torchrun reports that rank 0 of gpu.py ended with exit code 1; why is not in these lines",
        right="[Rr]ank 0|exit", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Rr]ank 0|exit", day=12),
)
# fmt: on
