"""Logs of other devices and of JAX, found on a third day: judged before traceops was run on them."""

from __future__ import annotations

from benchmarks.field.input import JAX, NCCL, NO_EVIDENCE, OTHER_LOG, UNTOLD, Input

# fmt: off
THIRD_DEVICES: tuple[Input, ...] = (
    Input("npu_llamafactory5071", OTHER_LOG, "diagnose",
        "hiyouga/LlamaFactory#5071",
        "log.txt",
        "d9b6c3e528c9a530891477a772c50bd3c6b060c9c757cb3b8e76e1fbe5121004",
        (
            "HCCL on Ascend: a rank's connection timed out because a remote rank did not send in time; nothing "
            "says which rank, or why"
        ),
        abstains=UNTOLD, never="✔|✖", day=3),
    Input("npu_vllm486", OTHER_LOG, "diagnose",
        "vllm-project/vllm-ascend#486",
        "log.txt",
        "cbda014f18a7a3011cad4a1f03185ac9ca011a2f9b7c7def6c65a6e355ca39f6",
        "rank 1 died in an all-reduce on Ascend: HCCL could not connect, the remote rank did not send in time",
        right="Rank 1 (died: it )?crashed, at all_reduce .*HcclAllreduce, error code is 6", never="✔", held=True,
        day=3),
    Input("npu_sync48", OTHER_LOG, "diagnose",
        "Ascend/pytorch#48",
        "log.txt",
        "e0d174edbd9f189b3a7e1b4eb5709d848a01ae1f1c20509f05ad0209ffcb07d6",
        (
            "a synchronisation of an Ascend device timed out (507046, stream sync timeout): a task on its "
            "stream did not end; no rank, no cause"
        ),
        abstains=UNTOLD, never="✔|✖", held=True, day=3),
    Input("npu_notify975", OTHER_LOG, "diagnose",
        "hiyouga/LlamaFactory#975",
        "log.txt",
        "53a55f6b7a1bcba4ded4667d74eb78eb1989ee23e74bc8fd07eb621d0eb76ea4",
        (
            "an all-reduce on Ascend waited 1,800 s for a remote rank's record (EI0002); who did not come is "
            "not said"
        ),
        abstains=UNTOLD, never="✔|✖", day=3),
    Input("npu_hccp3839", OTHER_LOG, "diagnose",
        "hiyouga/LlamaFactory#3839",
        "log.txt",
        "b87337e04a04337c319403c324a3ec1b15e0121f2e688eed22514ff6e2881fe3",
        (
            "rank 3's first barrier failed on Ascend: HCCL's helper process did not start, maybe because the "
            "last training still runs"
        ),
        right=r"crashed: RuntimeError: \[ERROR\] HCCL error in: torch_npu", never="✔", held=True, day=3),
    Input("npu_pdsh43", OTHER_LOG, "diagnose",
        "Ascend/pytorch#43",
        "log.txt",
        "799e0bd3d28b0130d4fd6e238518e7642a3aaf3b69ee2fe1e0022d1602c5bd61",
        (
            "tasks on worker-1's Ascend devices timed out while the host waited for them (107020); no rank, no "
            "cause"
        ),
        abstains=UNTOLD, never="✔|✖", held=True, day=3),
    Input("xpu_killed1663", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#1663",
        "log.txt",
        "fa06cdddc5632a4ba636232e2d15333b4c0eb4af40ae6ba0f7543dc4fc79f2c9",
        (
            "torch's test on Intel GPUs starts four processes over oneCCL; the lines hold CCL's warnings and "
            "no failure (the -9 is only in the title)"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=3),
    Input("xpu_dmesg1509", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#1509",
        "log.txt",
        "cf24f2f9c59746749ea8fc501f7664a1bc34cae011ead25e3c45c4ce5646c697",
        (
            "the kernel log has several python processes that died of a general protection fault in oneCCL "
            "(libccl.so) and of a segmentation fault in libsycl"
        ),
        right=r"crashed in compiled code: the kernel says .* libccl\.so", never="✔", held=True, day=3),
    Input("xpu_sigabrt1536", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#1536",
        "log.txt",
        "c5da631b17f90e5634f0cab7059917f230864fd5ba6972d9c8eccac8ad140264",
        "a process was aborted (SIGABRT) while oneCCL waited in an all-gather",
        right="crashed in compiled code: torch says that a process crashed: SIGABRT", never="✔", day=3),
    Input("jax_accept22747", JAX, "diagnose",
        "jax-ml/jax#22747",
        "log.txt",
        "3aac076c0447709ee282b4294516a98af4032320bb172e2355bd34b56e066a11",
        (
            "JAX: NCCL's init failed with a system error in its sockets (accept: bad file descriptor), replica "
            "6 of a process; no cause beyond that"
        ),
        right="saw NCCL fail in a system call or library.*ncclCommInitRank", never="✔", held=True, day=3),
    Input("t5x_oom832", JAX, "diagnose",
        "google-research/t5x#832",
        "log.txt",
        "7aeba2a16c7bac11d13fe18da108d14a3df523b98de0681c42e713782cf9ace4",
        (
            "JAX on p4d: NCCL could not set up a communicator because the GPU had no memory left (Cuda failure "
            "'out of memory')"
        ),
        right="ran out of GPU memory", never="✔", day=3),
    Input("flax_argument4942", JAX, "diagnose",
        "google/flax#4942",
        "log.txt",
        "1180e52d0d9df9011617499bd3cbfccf0da041bab03da05c3f367a25e450c3b8",
        (
            "JAX on 2 GPUs: ncclAllReduce refused an argument (NCCL: invalid argument), both replicas; why is "
            "not said"
        ),
        abstains=UNTOLD, never="✔|✖", held=True, day=3),
    Input("xla_tagged3162", JAX, "diagnose",
        "pytorch/xla#3162",
        "log.txt",
        "652e701c5d7c6c2c94a520fdf8de797878f130c8d87683cf8c14b858354fab54",
        (
            "XLA under Open MPI: on tasks 7 and 2 of job 1 cuDNN and cuBLAS could not be created; the "
            "allocator's lines say themselves that they are no failure"
        ),
        abstains=UNTOLD, never="✔|✖|ran out of", day=3),
    Input("hpu_graph484", OTHER_LOG, "diagnose",
        "HabanaAI/vllm-fork#484",
        "log.txt",
        "cccec51f15eb66fc4e5f938ee48c2501853531aab7f5658fef5d7b04e31f7294",
        "Gaudi: a graph could not be compiled because a TPC kernel (constant_bf16) could not be loaded",
        abstains=UNTOLD, never="✔|✖", day=3),
    Input("hpu_capture1038", OTHER_LOG, "diagnose",
        "huggingface/optimum-habana#1038",
        "log.txt",
        "872f5995a9781d3d7d81432443cd8fe0b90eaa0d4eb893310c04132d21ace001",
        "Gaudi, rank 0: an exception from C++ ended the process: a capture must end on the stream it began on",
        right="crashed: c10::Error: .*Capture must end on the same stream", never="✔", day=3),
    Input("nvls_pdsh1029", NCCL, "diagnose",
        "NVIDIA/nccl#1029",
        "log.txt",
        "fe153d0944f5e5f41e5b17f17f24ef5ba1654a22a103368f3520a11c0874c255",
        (
            "NCCL's init failed on GPU 4 of worker 1: a CUDA call of NVLS failed ('initialization error'); "
            "NVLS is not supported on these GPUs"
        ),
        abstains=UNTOLD, never="✔", held=True, day=3),
    Input("ib_status1405", NCCL, "diagnose",
        "NVIDIA/nccl#1405",
        "log.txt",
        "8e70abd5659a239b96076f14e480a02febcfe4a33c47b0b1f143d419a2ee58d1",
        (
            "on worker 0's GPU 4 an InfiniBand receive from 10.216.210.236 was not answered (completion status "
            "12, vendor error 129): the link or the peer is down"
        ),
        abstains=UNTOLD, never="✔|✖|these lines follow from something earlier", day=3),
    Input("nan_t2t1074", JAX, "diagnose",
        "tensorflow/tensor2tensor#1074",
        "log.txt",
        "6a8a325aa512cf06ae827feca4a35304daa5944dbaae763ad30316399044cef0",
        "TensorFlow stopped because the loss became NaN after step 0",
        right="stopped because the loss is NaN", abstains=UNTOLD, never="✔", held=True, day=3),
    Input("jax_shutdown338", JAX, "diagnose",
        "vwxyzjn/cleanrl#338",
        "log.txt",
        "167078e96df00db9d48efcb3b21eb9b8e2294017e5f041f65f17b8bd8b882354",
        (
            "JAX's coordination service did not answer while the program shut down (DEADLINE_EXCEEDED); which "
            "task was gone is not said"
        ),
        right="crashed: XlaRuntimeError: DEADLINE_EXCEEDED", never="✔", day=3),
    Input("jax_fatal39095", JAX, "diagnose",
        "jax-ml/jax#39095",
        "log.txt",
        "e6819b727094117e07a9c3c61ba105dc89004844ac8f1d8d166e4a79b3142d60",
        "a JAX process ended itself because another task, probably the leader, was gone: this one is a victim",
        abstains=UNTOLD, never="✔|✖", day=3),
)
