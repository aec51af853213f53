"""Threads and files of a tenth day that tell of a failure, a sample by rules (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CRASH, JAX, NO_EVIDENCE, OTHER_LOG, UNTOLD, Input

# fmt: off
TENTH: tuple[Input, ...] = (
    Input("jax12456", JAX, "diagnose",
        "google/jax#12456", "log.txt",
        "436c021934ec2f255ff64e7f0bbd77dfb713405a9408a1c9997bcd969fed4333",
        "a host of a TPU pod got SIGSEGV (pid 11743) while the TPU backend started; why is not in these lines",
        right="SIGSEGV|[Ss]egmentation", abstains=UNTOLD,
        never="✔|holds no evidence|pid 12350",
        root="SIGSEGV|[Ss]egmentation", day=10),
    Input("horovod1950", CRASH, "diagnose",
        "horovod/horovod#1950", "log.txt",
        "f99a65bf443e83f0322008cb50ee70abfa3a9e19cb7a7e5f5455d71a3b10b226",
        (
            "an MPI peer on host reco-zl-c4-reco316 disconnected (crashed or left without MPI_FINALIZE), told by "
            "pid 7720; rank 7's own abort is cut off"
        ),
        right="peer|disconnect|Aborted|reco316", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]ank 7720",
        root="reco316|disconnected", day=10),
    Input("mindyolo242", OTHER_LOG, "diagnose",
        "mindspore-lab/mindyolo#242", "log.txt",
        "774f7a73ed98f9e42999e2556a16f622d8d31102bce616a06699c8fab4dbad9f",
        (
            "MindSpore training under mpirun: process 374576 got a segmentation fault in numpy's "
            "_multiarray_umath in epoch 2, step 600"
        ),
        right="[Ss]egmentation fault|SIGSEGV", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Ss]egmentation fault|SIGSEGV", day=10),
    Input("xpu2314", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#2314", "log.txt",
        "783aa535229252191b119a420d6ebac708dfa94c57961e04436bb8e934f0898d",
        (
            "pytest on Intel XPU: test workers crashed (gw0 in grid_sampler_2d, gw1 in to_sparse_int16; gw4 not "
            "properly terminated); why is not in these lines"
        ),
        right="crash|not properly terminated", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"gw\d|crashed while running|node down", held=True, day=10),
    Input("composer1165", CRASH, "diagnose",
        "mosaicml/composer#1165", "log.txt",
        "7206bbd1ee1d102e8191adb05ef1a2ecd138ee352907df6067fb742c553a970a",
        (
            "Composer on AMD GPUs: rank 2 crashed with exit code -6 (SIGABRT) in epoch 68; why is not in these "
            "lines"
        ),
        right=r"[Rr]ank 2\b.*(-6|SIGABRT|[Aa]bort)",
        never=r"✔|holds no evidence|Ranks? [013]\b",
        root=r"[Rr]ank 2\b.*(-6|SIGABRT|[Aa]bort)", held=True, day=10),
    Input("paddle56200", CRASH, "diagnose",
        "PaddlePaddle/Paddle#56200", "log.txt",
        "ad29f8f7eac369944aaf7f5eb1ff1cb3de1b61eb2808e34bd04c770ae70b70ae",
        "a traceback of main.py: VisualDL's LogWriter makes its folder ./runs/; the error itself is cut off",
        right="[Tt]raceback|LogWriter|makedirs|bfile", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"LogWriter|makedirs|bfile|main\.py", day=10),
    Input("tf48439", JAX, "diagnose",
        "tensorflow/tensorflow#48439", "log.txt",
        "2997e2a190e310b8df31b2efe754fa4b8ab374d1dbf9da746036caf94197415c",
        "TensorFlow's InternalError with 5 root errors: an output of a dropout node of replica 3 is missing",
        right="InternalError|Missing 1-th output|root error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="InternalError|Missing 1-th output", day=10),
    Input("determined3275", JAX, "diagnose",
        "determined-ai/determined#3275", "log.txt",
        "f1a049f6bf65c64843a7e0a84f3064c751d98cf3ed469c49700f7759b96cebe3",
        (
            "frames of a traceback of rank 0 in Keras' model.fit under Determined; its head and its error are cut "
            "off"
        ),
        right=r"[Tt]raceback|model\.fit|training\.py|function\.py", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"model\.fit|training\.py|function\.py|_call_flat", day=10),
    Input("pytorch113868", CRASH, "diagnose",
        "pytorch/pytorch#113868", "log.txt",
        "3f1fb9dbb763267efcde6a062eadf6e32298e9665e904b176dd04e8bbcf33450",
        (
            "torchrun lost its rendezvous store (connection reset by peer) after 4.5 minutes, ended its worker, "
            "and ended in a traceback that is cut off"
        ),
        right="[Rr]endezvous|Connection reset by peer|store", abstains=UNTOLD,
        never="✔|holds no evidence|worker (crashed|failed)",
        root="[Rr]endezvous|Connection reset by peer", day=10),
    Input("llmc426", CRASH, "diagnose",
        "karpathy/llm.c#426", "log.txt",
        "733821e18bd0a6d100a252dca13498ae570fe784388988d4080614278993ffb1",
        (
            "PMIx could not use its lock file (gds_ds12_lock_pthread.c) on four processes of two nodes; then the "
            "program started all the same; the lines end in its table of settings"
        ),
        right="PMIX ERROR|PMI", abstains=NO_EVIDENCE + "|" + UNTOLD,
        never="✔|✖",
        root="PMIX", day=10),
    Input("higherhrnet47", CRASH, "diagnose",
        "HRNet/HigherHRNet-Human-Pose-Estimation#47", "log.txt",
        "aa9b3f08031b2a10dd513b82a5ec0b05f35821eca6e7555343727f4bf9057871",
        "mp.spawn: process 1 was ended by SIGKILL in epoch 19; who killed it is not in these lines",
        right=r"([Pp]rocess|[Rr]ank) 1\b.*(SIGKILL|killed)",
        never=r"✔|holds no evidence|[Rr]anks? 0\b",
        root=r"([Pp]rocess|[Rr]ank) 1\b.*(SIGKILL|killed)", held=True, day=10),
    Input("caffe2114", CRASH, "diagnose",
        "BVLC/caffe#2114", "log.txt",
        "448dac4ec88b8c7db145427d4a04eace00113910d7daa0a564e9cbb7d3cb96f8",
        (
            "two users' runs of multi-GPU Caffe: a SIGSEGV in SolverContext::run (pid 4086), and a check that "
            "peer access failed with CUDA error 51"
        ),
        right="SIGSEGV|[Ss]egmentation|peer access|Check failed", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="SIGSEGV|[Ss]egmentation|peer access", day=10),
    Input("lightseq143", CRASH, "diagnose",
        "bytedance/lightseq#143", "log.txt",
        "1d3260f14a6da39b681ece8ad78f97ed9562bccb077adc1f09ec8e8f9aa75467",
        "LightSeq's matrix products failed on the GPU five times (cuBLAS errors 13 and 14)",
        right="kernel execution error|cublas", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="kernel execution error", day=10),
    Input("jax12550", JAX, "diagnose",
        "google/jax#12550", "log.txt",
        "9f467bdc5a2ee12de058bb10657c50839b4ab02e078f5879343407d1249d55ce",
        (
            "a process on a TPU VM asked for 377 TB at once (tcmalloc) and ended in an unhandled exception; why "
            "is not in these lines"
        ),
        right="[Uu]nhandled exception|tcmalloc|large alloc", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Uu]nhandled exception|large alloc", day=10),
    Input("lightning7912", JAX, "diagnose",
        "PyTorchLightning/pytorch-lightning#7912", "log.txt",
        "1281ccb8b0053ad94d6ef69dbaa79a640f2135055a3926eb1ac2bdf32a538b0d",
        (
            "hosts of a TPU pod stand in MeshClient::Rendezvous when SIGTERM ends them; why they were ended is "
            "not in these lines"
        ),
        right="SIGTERM|Rendezvous|MeshClient", abstains=UNTOLD,
        never="✔|holds no evidence|SIGSEGV",
        root="SIGTERM|Rendezvous", held=True, day=10),
    Input("horovod2097", CRASH, "diagnose",
        "horovod/horovod#2097", "log.txt",
        "9a6b0bddc45dec90e72690d57ca66f43196dd0042878cdaa4d2b5fbe0e2e2741",
        (
            "Horovod was shut down after an exception on another rank; ranks 0 and 1 tell only of the shutdown; "
            "the exception itself is not in these lines"
        ),
        right="Horovod has b|shut down|root error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="shut ?down|Horovod has b", day=10),
    Input("horovod583", CRASH, "diagnose",
        "horovod/horovod#583", "log.txt",
        "07bd235f2d440bf9bd0b04edfe1804d09d37d692f59010091d5358d05b428218",
        (
            "a first attempt ended: Horovod was shut down after an exception on one of the ranks; then the "
            "program starts once more on a GTX 1080"
        ),
        right="shut ?down|Horovod|AbortedError", abstains=UNTOLD + "|" + NO_EVIDENCE,
        never="✔",
        root="shut ?down|AbortedError", day=10),
    Input("horovod410", CRASH, "diagnose",
        "horovod/horovod#410", "log.txt",
        "b3a649e0fb3ab2f8ea08ce82a9cb365a18e68786f53aa0c2d3d16fea9c787c5e",
        (
            "mpirun: one process returned a non-zero exit code, so the job was aborted; the others tell that "
            "Horovod was shut down; which process is not in these lines"
        ),
        right="non-zero exit code|shut ?down", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="non-zero exit code|1 process returned", held=True, day=10),
    Input("pai2730", CRASH, "diagnose",
        "microsoft/pai#2730", "log.txt",
        "5d16f56469a5b99a755f7b9a533511995f9e31093f7c4c206104119c787d1b3a",
        (
            "a rank's broadcast of parameters ended: Horovod was shut down after an exception on another rank, "
            "which is not in these lines"
        ),
        right="shut ?down|Horovod", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="shut ?down|Horovod", held=True, day=10),
    Input("xpu2470", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#2470", "log.txt",
        "208a5f66d08ea57a2b98d7531df8b0bcfd4fb9db735c20f2d56dd14005739e17",
        (
            "pytest on Intel XPU: the workers gw2 and gw4 crashed while running a test each; why is not in these "
            "lines"
        ),
        right="crash|FAILED", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="gw2|crashed while running", held=True, day=10),
    Input("xpu2178", OTHER_LOG, "diagnose",
        "intel/torch-xpu-ops#2178", "log.txt",
        "abe9340c6d3db9ec350ceefc96308883ee6834c0d81c114e8344ca2ffbc44bb4",
        (
            "a segmentation fault on an Intel GPU (page not present, read) aborted the process; torchrun then "
            "ended the other"
        ),
        right="[Ss]egmentation fault from GPU|Abort was called", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]ank 378404",
        root="[Ss]egmentation fault from GPU", held=True, day=10),
    Input("xmem53", CRASH, "diagnose",
        "hkchengrex/XMem#53", "log.txt",
        "6c0e9a29fb2c79f0e4590e8855fa98ae20e97f9dd6688778a186e09c1224f3fb",
        "train.py, line 81, ended in a NameError where TensorboardLogger is called; the name is cut off",
        right="NameError|TensorboardLogger|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence|No such file",
        root=r"NameError|TensorboardLogger|train\.py", held=True, day=10),
    Input("chatglm", CRASH, "diagnose",
        "Xavier-123/langchain_chatglm@e47c003d389da07f58dbdaa8b7d65a367f640c33", "nohup.out",
        "08cea7f13b5ddd96ced7c437bd6fb2b0326d4d98d1c03b405b1f5f9338616d72",
        (
            "a chat server on two GPUs, started about 25 times into one file: the attempts failed in several ways "
            "(tensors on two devices, no module pysolr, no such file, an unset variable); the last one serves "
            "without an error"
        ),
        right="UnboundLocalError|same device|pysolr", abstains=UNTOLD + "|" + NO_EVIDENCE,
        never="✔",
        root="UnboundLocalError|same device|earlier|attempt", day=10),
    Input("dcgannpu", OTHER_LOG, "diagnose",
        "XBisATrouble/DCGAN-NPU@cb97a0913b44f924d13fd271b6e0103d05f8266d", "nohup.out",
        "f81a58d239185e261bf9f8fdfde51daa177a6ddd25f8069cbd908c374e91b8a4",
        (
            "a GAN of TensorFlow: a first attempt was aborted (no supported device found for the platform CUDA); "
            "a second one, without CUDA's libraries, trains on to epoch 1 of 25 without an error"
        ),
        right="no supported devices|StreamExecutor|Aborted", abstains=UNTOLD + "|" + NO_EVIDENCE,
        never="✔",
        root="no supported devices|StreamExecutor|Aborted|attempt", held=True, day=10),
    Input("deception", JAX, "diagnose",
        "albe89/deceptionDetection@0c28acc435fa9c22114f1e6f316e0b54db3c2a98", "job.err",
        "60022cf45b2ef1e7ca1ed3d229b99c62c4cedacd99340a00b37c046e8008b8a5",
        (
            "TensorFlow ran out of memory on a TITAN Xp: a tensor of [2,64,400,112,112] floats in the gradient of "
            "pool1"
        ),
        right="out of (GPU )?memory|OOM|ResourceExhausted",
        never="✔|holds no evidence",
        root="out of (GPU )?memory|OOM|ResourceExhausted", day=10),
    Input("diffuseq", CRASH, "diagnose",
        "Shark-NLP/DiffuSeq@b6ad82e4990b2ae0b8ab3ac1317348b896340e33", "log.err",
        "52fdcc26448f3abfa774c7520b8a7af15f19accd125d8244720448d04b624db2",
        "Singularity could not open the overlay image overlay_img2: no such file",
        right="overlay", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="overlay", day=10),
    Input("duald", CRASH, "diagnose",
        "X-7D1C11010/Dual_D@651c72689ba743a96035244acff42d998ba3f243", "nohup.out",
        "b25ba921d915ec2adde0101027c0e9af0288c67ed860c004e27830f754646078",
        "train_dual_d.py refused its command line twice: unrecognized arguments, which are blanks",
        right="unrecognized arguments", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="unrecognized arguments", held=True, day=10),
    Input("yoloda26", CRASH, "diagnose",
        "X-7D1C11010/YOLO_DA26@a3647ba12facb7a98e0544edc842140285c5c0df", "nohup.out",
        "d401ce1860dc730f18bcc401cbe03e973299dddff625c45192781e9dd41053f0",
        "train_26.py refused its command line: unrecognized arguments: --domain_weight 0.02",
        right="domain_weight|unrecognized arguments", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="domain_weight", held=True, day=10),
    Input("hd3", CRASH, "diagnose",
        "XDong18/hd3@95cd8be6815c438199b958c3b3d0ab4ae6ba8442", "nohup.out",
        "df85eae8b48dbaa51b69f9af0cbfd4c4ea563b9a3dd9c3ad3e25f70869ccbf6b",
        (
            "three attempts in one file: one was interrupted from the keyboard, one ended in a FileNotFoundError "
            "in a data-loader worker (b1ca8418-84a133a0-0000001.jpg), and the last one tests on"
        ),
        right="FileNotFoundError|b1ca8418", abstains=UNTOLD + "|" + NO_EVIDENCE,
        never="✔",
        root="FileNotFoundError|b1ca8418|attempt", held=True, day=10),
    Input("frnet", CRASH, "diagnose",
        "Xavier-wa/FRNet@3a48bd319cd9659fc28c4e66568a9322ebf52349", "nohup.out",
        "85a42ff22a973dbbc4718d00a4b615ec937522b2496d219a3a6fdb5aeb195747",
        (
            "the import of torch was interrupted from the keyboard; it says so as a RuntimeError: "
            "KeyboardInterrupt"
        ),
        right="KeyboardInterrupt|interrupt", abstains=UNTOLD + "|" + NO_EVIDENCE,
        never="✔|undefined symbol",
        root="KeyboardInterrupt|interrupt", held=True, day=10),
)
# fmt: on
