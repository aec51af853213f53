"""Threads of an eighth day, a sample by rules of texts that tell of a failure (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CRASH, JAX, OTHER_LOG, UNTOLD, WATCHDOG, Input

# fmt: off
EIGHTH: tuple[Input, ...] = (
    Input("bsmeg142", CRASH, "diagnose",
        "bigscience-workshop/Megatron-DeepSpeed#142", "log.txt",
        "b325224c1ddc2a5c7d9e4153741c367b5139c4a571bf92e58483d6aa9fc99fa8",
        (
            "pytest lists four failed tests, one of them by its time limit of 300 s; the tracebacks of two "
            "ranks of Megatron stand mixed, without their end"
        ),
        right="[Tt]raceback|Timeout|FAILED", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=8),
    Input("megatron1202", CRASH, "diagnose",
        "NVIDIA/Megatron-LM#1202", "log.txt",
        "5a88265068da940ffc74fa68ed08bffc7178da0b666d0e6b743ea701f5e5c8c4",
        "the traceback of torchrun, cut within its first frame; why is not in these lines",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("accelerate1473", CRASH, "diagnose",
        "huggingface/accelerate#1473", "log.txt",
        "f5d0325d1cbf5f6421fdafd31fb465137c4c8371893f7a9893a81622d17be7c2",
        (
            "torchrun's ChildFailedError under accelerate's test script, each line after \"stderr: \"; which "
            "rank and why is cut off"
        ),
        right="ChildFailedError|test_script|[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence",
        day=8),
    Input("lightning3311", CRASH, "diagnose",
        "Lightning-AI/pytorch-lightning#3311", "log.txt",
        "2ce839636a6adbdd1ec9b4aef809bc895aac3142efe8bc856697bd5daa71ac73",
        "an exception in trainer.fit as IPython shows it (\"ExceptionTraceback\"); which one is cut off",
        right="[Tt]raceback|exception", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("fastchat2490", CRASH, "diagnose",
        "lm-sys/FastChat#2490", "log.txt",
        "dd40894054d5dc7c2424f73e17314661f56692bbf86dd6c838a2f9a66aa9fae7",
        "a worker of Ray (pid 3346) under FastChat's vLLM ended in a bus error (Fatal Python error)",
        right="[Bb]us error|SIGBUS", never="✔|holds no evidence", held=True, day=8),
    Input("gpustack3383", CRASH, "diagnose",
        "gpustack/gpustack#3383", "log.txt",
        "109894442aab23584482f85e341f057ee70c73ccdd1d8981ba8ade0a0e310710",
        (
            "rank 1 lost its connection to torch's store on port 30005: the other side closed it; why is not "
            "in these lines"
        ),
        right="store|recvValue|closed", abstains=UNTOLD,
        never="✔|holds no evidence|Rank 1 (died|crashed)", day=8),
    Input("jax37001", JAX, "diagnose",
        "jax-ml/jax#37001", "log.txt",
        "f0766b4c8c76f76175313244425c9eaa8efcbfb4fad1c9ebfeebf0acfb3c698d",
        "CUDA's driver has no code for the GPU (ISA 90): CUDA_ERROR_NO_BINARY_FOR_GPU, two processes of JAX",
        right="NO_BINARY_FOR_GPU|no (kernels|device code|code) for", never="✔|holds no evidence",
        held=True, day=8),
    Input("llamafactory4849", CRASH, "diagnose",
        "hiyouga/LlamaFactory#4849", "log.txt",
        "652f5e19158e889d3fe0b47d83837520e3d92b718d847ff6d014312847f52cbf",
        "torchrun says that local rank 0 (pid 1077) ended with exit code 1; why is not in these lines",
        right=r"[Rr]ank 0\b.*exit code 1|exit code 1.*[Rr]ank 0\b", never="✔|holds no evidence", day=8),
    Input("swift8307", CRASH, "diagnose",
        "modelscope/ms-swift#8307", "log.txt",
        "d9fa722d541d896a079ed1a6513aae2a0a9f172a28fcfcea54af0716e53b1f4f",
        (
            "torchrun's report names ranks 0 (pid 226) and 1 (pid 227) with exit code 1, and one more whose "
            "number is cut off; the first to fail is not among these lines"
        ),
        right=r"[Rr]anks? 0\b.*exit code 1|exit code 1", abstains=UNTOLD,
        never="✔|holds no evidence|Rank [2-9]", held=True, day=8),
    Input("unsloth2435", CRASH, "diagnose",
        "unslothai/unsloth#2435", "log.txt",
        "bef12e1b27d3d3da00701daea98465afdda50eb5b67f2bae1064046360d9a06d",
        "four ranks start under accelerate; a traceback begins in the import of unsloth, and is cut off",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("flowpm80", CRASH, "diagnose",
        "DifferentiableUniverseInitiative/flowpm#80", "log.txt",
        "041b1969dac9cf9e027f02fa5a64e5fd7e751383c7e49a5f1097b7f2d9d32cad",
        "task 3 of a step of Slurm on four GPUs exited with code 255, and Slurm terminated tasks 0 to 2",
        right=r"([Tt]ask|[Rr]ank) 3\b.*255|255.*([Tt]ask|[Rr]ank) 3\b",
        never="✔|holds no evidence|ended from outside", held=True, day=8),
    Input("colossal2992", CRASH, "diagnose",
        "hpcaitech/ColossalAI#2992", "log.txt",
        "8312f5fc9a26fff104c53eefcf7f004a523f3b430a8412b56480144804fa51ae",
        (
            "torchrun's report: rank 0 on zztf-gpu02 ended with exit code 1, and no other failed; the head of "
            "the traceback is cut off"
        ),
        right=r"[Rr]ank 0\b.*exit code 1|exit code 1.*[Rr]ank 0\b", never="✔|holds no evidence",
        held=True, day=8),
    Input("torchtune1734", CRASH, "diagnose",
        "meta-pytorch/torchtune#1734", "log.txt",
        "e92ab17a8156ebcf21477deb2d958961920f2c9ec4c7d3558ec5466539168086",
        "the first frames of a traceback of torchtune's launcher that rich drew in a box",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=8),
    Input("mosaic292", CRASH, "diagnose",
        "mosaicml/examples#292", "log.txt",
        "219915f8a734bb491ae09d97583a28a84590314ce77c4a7531d09670f83b55a8",
        (
            "Composer's launcher says that rank 1 crashed with exit code 1; then Python's warnings of shared "
            "memory that was left"
        ),
        right=r"[Rr]ank 1\b.*exit code 1|exit code 1.*[Rr]ank 1\b", never="✔|holds no evidence",
        held=True, day=8),
    Input("ray49260", CRASH, "diagnose",
        "ray-project/ray#49260", "log.txt",
        "512b561de47f5fd6c601717e2ef92b4d450586536cda594bedf4411fdb46039e",
        "a trial of Ray's TorchTrainer with four workers failed; its traceback is cut in its first frame",
        right="[Tt]rial|[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("kftrainer2008", CRASH, "diagnose",
        "kubeflow/trainer#2008", "log.txt",
        "5445a37f07bd5f36915916c4d50895e1c4b000b80e48a8ca5fb3ed3010c8e820",
        (
            "Kubeflow's operator: the pod of worker 0 exited with code 1 and is restarted over and over "
            "(CrashLoopBackOff)"
        ),
        right=r"worker-0\b.*code 1|CrashLoopBackOff|code 1.*worker-0", never="✔|holds no evidence", day=8),
    Input("firefly221", CRASH, "diagnose",
        "yangjianxin1/Firefly#221", "log.txt",
        "2218816418749c83b33a19a1d60d29202fe131469a50ee729c99003352b9876b",
        "torchrun says that local rank 1 (pid 2589) ended with exit code 1; why is not in these lines",
        right=r"[Rr]ank 1\b.*exit code 1|exit code 1.*[Rr]ank 1\b", never=r"✔|holds no evidence|distributed\.ela\b",
        held=True, day=8),
    Input("sglang3836", WATCHDOG, "diagnose",
        "sgl-project/sglang#3836", "log.txt",
        "24c21fe28cc4a724c1d655b2707b5f6f8d4766c8e4d7b0df614fd0881ce01a4a",
        (
            "rank 5 waits in all-reduce 5653 (58,720,256 elements) for ten minutes; its line follows Python's "
            "list of extension modules without a break"
        ),
        right=r"[Rr]ank 5 .*#5653\b", never="✔|holds no evidence", held=True, day=8),
    Input("ascend3162", OTHER_LOG, "diagnose",
        "vllm-project/vllm-ascend#3162", "log.txt",
        "ce3ca576e1f048e19a7d1be970b90439157930a8390ce176481624e6226e0949",
        (
            "HCCL on rank 1 could not connect to rank 0 (EI0009, transport init error); the engine of vLLM "
            "then failed in collective_rpc, and its traceback is cut off"
        ),
        right="EI0009|[Tt]ransport init", never="✔|holds no evidence", held=True, day=8),
    Input("onednn2968", OTHER_LOG, "diagnose",
        "uxlfoundation/oneDNN#2968", "log.txt",
        "4ecddbd00e0682471ea054925ee5f922ef6effc033c866aff3e1700f9fbcb3cc",
        (
            "oneDNN on an Intel GPU says twice that OpenCL does not find the GPU, and goes on with Level Zero; "
            "the job does not fail in these lines"
        ),
        right="OpenCL device not found|no evidence", abstains=UNTOLD, never="✖", day=8),
    Input("maskrcnn172", CRASH, "diagnose",
        "CharlesShang/FastMaskRCNN#172", "log.txt",
        "3f25df402b6975ba1f77fb8bb4c93388b36b18bce78139ab7733628857f26b98",
        (
            "the training ended with the shell's word Killed, between asterisks; who killed it is not in these "
            "lines"
        ),
        right="[Kk]illed|SIGKILL", never="✔|holds no evidence", day=8),
    Input("nccltests15", CRASH, "diagnose",
        "NVIDIA/nccl-tests#15", "log.txt",
        "103c26e4e064468900adefa0d69c373d3fae060a83ab3536cb1f51819354aef4",
        "nccl-tests failed with NCCL's unhandled system error: the remote side closed the connection",
        right="unhandled system error|[Cc]onnection closed|closed (the|its) connection",
        never="✔|holds no evidence", day=8),
    Input("dsexamples645", CRASH, "diagnose",
        "deepspeedai/DeepSpeedExamples#645", "log.txt",
        "eb6cf4058359e5cbb0b0230ebf9288bfc5c914149966530a657a85c075e6f1ff",
        (
            "DeepSpeed-Chat's launcher raised a RuntimeError, for step 1 exited with status 1; why it did is "
            "cut off"
        ),
        right="RuntimeError: Step 1 exited|non-zero status 1", never="✔|holds no evidence", day=8),
    Input("accelerate3664", CRASH, "diagnose",
        "huggingface/accelerate#3664", "log.txt",
        "e85eee4b1ccba7ce0dcc678bfca7f9e6f592b0abd1f7a0a2c446d012d16a4c26",
        "torchrun's ChildFailedError under accelerate on Intel GPUs; the report is cut at the host",
        right="ChildFailedError|fsdp2-acc|[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("gpustack3573", CRASH, "diagnose",
        "gpustack/gpustack#3573", "log.txt",
        "fd8faeeff1ebac7a17972943b22f4dab19c82a1b518e24d23152144029ced058",
        "frames of a traceback of vLLM's worker TP0, in profile_run; its head and its error are cut off",
        right="[Tt]raceback|TP0", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=8),
    Input("xinference3373", CRASH, "diagnose",
        "xorbitsai/inference#3373", "log.txt",
        "ddef1231bba384cdeb4a290e0226738189a87f2e4596b8bc869d3ea53ae8add5",
        "frames of a traceback of Xinference, in the launch of a model; its head and its error are cut off",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("sglang18366", OTHER_LOG, "diagnose",
        "sgl-project/sglang#18366", "log.txt",
        "5afa203554a4b4bd6f5fa1758d522e9d44f28adf72987eac366489f016542812",
        "a table of evalscope: all 400 requests to SGLang's server failed; why is not in these lines",
        right="400|[Ff]ailed requests", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("verl1049", CRASH, "diagnose",
        "verl-project/verl#1049", "log.txt",
        "43f542a105802bff735b0c79e6f8903ff742facbdeb8a1c4fd77b6c3f4a18355",
        "SGLang's scheduler of TP0 hit an exception as it started under verl; which is cut off",
        right="[Tt]raceback|exception", abstains=UNTOLD, never="✔|holds no evidence", day=8),
)
# After the mends.
EIGHTH_CHECK: tuple[Input, ...] = (
    Input("deepspeed4037", CRASH, "diagnose",
        "deepspeedai/DeepSpeed#4037", "log.txt",
        "2ca909a3b7a3ebf78a271b104809c61dd7af183c24382fe63eb4a9698a13179e",
        (
            "frames of tracebacks of ranks on host gpu-h100-alyssa-2, mixed, in DeepSpeed's optimizer step; "
            "heads and errors are not in these lines"
        ),
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("vllm18567", CRASH, "diagnose",
        "vllm-project/vllm#18567", "log.txt",
        "1c17e0d350cde140485048bba9c7490198f571c5f28ee05703e7dd55af6ac96a",
        "a traceback of vLLM's EngineCore_3, all in one line as the terminal padded it; its error is cut off",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("ray51527", CRASH, "diagnose",
        "ray-project/ray#51527", "log.txt",
        "089f3f1c6cffe8d498d5cb71fea7262e4b92780ee22543f42cb5108a92d51901",
        (
            "a trainer of Ray got SIGSEGV, in TaskInfoAccessor::AsyncAddTaskEventData, behind the end of its "
            "training"
        ),
        right="SIGSEGV", never="✔|holds no evidence", day=8),
    Input("cosmos85", CRASH, "diagnose",
        "NVIDIA/cosmos#85", "log.txt",
        "b22452e4820617862da34f716945927ec6fcef4530875a6e7435a0493ffda77b",
        "frames of a traceback of rank 1 in Megatron's attention; its head and its error are cut off",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("llamafactory9656", CRASH, "diagnose",
        "hiyouga/LlamaFactory#9656", "log.txt",
        "fda8ce0b4832daebfc35e4cc1e20ee5c19058c78e751b6d46e9763bf5ba7cb5d",
        (
            "torchrun's ChildFailedError under LLaMA-Factory's launcher; no other failure, and the rank is cut "
            "off"
        ),
        right="ChildFailedError|launcher.py|[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence",
        day=8),
    Input("swift1507", CRASH, "diagnose",
        "modelscope/ms-swift#1507", "log.txt",
        "fd1b10041275acfb3c3aa6574c9592bb92d0067a84275ac790231abe06b07eb6",
        (
            "torchrun ends seven processes with SIGTERM, one of them with SIGKILL in the end; which failed "
            "before is not in these lines"
        ),
        right="closing signal|SIGTERM", abstains=UNTOLD,
        never="✔|holds no evidence|ended from outside|Rank", day=8),
    Input("simplegrpo46", WATCHDOG, "diagnose",
        "lsdefine/simple_GRPO#46", "log.txt",
        "7b4936c1b0014a2dd0ef9292970d1a9d04dbb54b584bd8c9f6b9730e24e8ffa4",
        (
            "rank 2 waits in all-reduce 45390 (544,997,376 elements) for ten minutes; it has enqueued up to "
            "45403"
        ),
        right=r"[Rr]ank 2 .*#45390\b", never="✔|holds no evidence", day=8),
    Input("diffusers210", CRASH, "diagnose",
        "ShivamShrirao/diffusers#210", "log.txt",
        "580d13032535c7503b93206a702edcb4480cafb9223d214a253f16462646aa8e",
        "a traceback of a DreamBooth training under DeepSpeed, cut off in _configure_optimizer",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("trl3221", CRASH, "diagnose",
        "huggingface/trl#3221", "log.txt",
        "e5a40da7e4df3b7517b060bcd5c8bf53d5bcdd0475d86e9819714ff363f002f8",
        "a traceback of rank 0 in TRL's GRPO trainer, cut off as it prepares its inputs",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=8),
    Input("vllm33338", CRASH, "diagnose",
        "vllm-project/vllm#33338", "log.txt",
        "ac33d4da52bb0ae9c4166ec2c5f41b5410655fd2f0f2f449eaaca77ffddb06f7",
        (
            "the engine of vLLM dumps its input because it failed, and rank 1 finds torch's store gone; why is "
            "not in these lines"
        ),
        right="Dumping input|TCPStore|should dump|Broken pipe", abstains=UNTOLD,
        never="✔|holds no evidence|Rank 1 (died|crashed)", day=8),
)
# fmt: on
