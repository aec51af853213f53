"""Failing texts of an eleventh day, a sample by rules (samples.md, docs/field.md): torch on NVIDIA GPUs."""

from __future__ import annotations

from benchmarks.field.input import CRASH, UNTOLD, WATCHDOG, Input

# fmt: off
ELEVENTH: tuple[Input, ...] = (
    Input("tradingagents", CRASH, "diagnose",
        "ShensiCeciliaLi/TradingAgents@1ff884edb8f46bd47f724ecd062a94a10873ee74", "vllm.log",
        "669275fbeee47dfe807af2986c4efe588dec715230b72f312ad2224408e8788b",
        (
            "vLLM did not start: 5.92 of 79.19 GiB of the GPU were free, and it wanted 71.27 GiB; who holds the"
            " rest is not in these lines"
        ),
        right=r"Free memory|5\.92", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"Free memory|5\.92", held=True, day=11),
    Input("medqa", CRASH, "diagnose",
        "vatsasree/MedQA_Agent@80014b7c65f09925cbd2b6d5ff14f3412625701d", "vllm.log",
        "29fde5c43f0bb45927db752b10e904a803a9bc3172e9d05b93981d67746c6dec",
        (
            "vLLM with four tensor-parallel workers did not start: on the GPUs about 54 of 79 GiB were free, "
            "and it wanted 72.84 GiB"
        ),
        right=r"Free memory|5[34]\.\d\d", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"Free memory|5[34]\.\d\d", day=11),
    Input("shikra", CRASH, "diagnose",
        "varshetshrikar/Shikra-MLLM-Referential-Dialogue-Magic@6118b07de5361fe7a7c1054316419560f481da38",
        "finetune.log",
        "983931c45c5fab5a4de2d97bb0dca2aac3a5af0b9b6abc22f050e9f88d7eecba",
        (
            "rank 0 ended in a ValueError: the train_dataset has no __len__, so max_steps has to be given; "
            "torchrun reports exit code 1"
        ),
        right="max_steps|__len__", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="max_steps|__len__", held=True, day=11),
    Input("vllmcluster", CRASH, "diagnose",
        "Dany546/vllmcluster@2bf81e21fb08c30a68eef0728bf236f8060bdc81", "job.err",
        "a9d8d42f9452b2b23a69701043e019d8937d020d6423c7d72af71ab525d15d93",
        (
            "a job under Slurm ended in sqlite3.OperationalError: 7 values for a table of 11 columns "
            "(clustering.py, line 615)"
        ),
        right="OperationalError|11 columns", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="11 columns|OperationalError", held=True, day=11),
    Input("lamarecon", CRASH, "diagnose",
        "NilsBochow/lama_reconstruction@123bccafaa91166c090bfdab4950a04c987f4e9f", "gpu.err",
        "75db4c2495d44d851e72102211e0f3a81a798da7d88b98647b7d2fa247fc7327",
        (
            "a training did not start: an import (imgaug, skimage, dask) ended in a TypeError, yaml's load() "
            "misses its argument Loader"
        ),
        right="Loader", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="Loader", day=11),
    Input("framediff", CRASH, "diagnose",
        "CaptainAmu/FrameDiff@4207c2ad5dba359f0d883afef3991e787f79834b", "run.err",
        "d3e5bc042ff33cdd9a752e8a40366cd36293c11cbe37664f6889a3b2ef5197cb",
        "a training wanted 2 GPUs and found 1: ValueError; srun reports exit code 1",
        right="require 2 GPUs", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="require 2 GPUs", day=11),
    Input("neuroslm", CRASH, "diagnose",
        "269652/neuroslm@db478cd567ca54784b74b71b13f4cd3f92892ddd", "training.err",
        "351efd83709bec414d5855958135d81ee1d3676ab24a422b423ebd13f86efb34",
        (
            "two attempts: an IndentationError in brain.py, then torch.save failed while it wrote (stream "
            "error, unexpected pos)"
        ),
        right="unexpected pos|stream error|badbit", abstains=UNTOLD,
        never="✔|holds no evidence|crashed, at <module> .brain",
        root="unexpected pos|stream error|badbit", day=11),
    Input("logicrl", CRASH, "diagnose",
        "zhiyuanhubj/logic-rl-formula@6eacbf2929f85db0b6d8922136ab13a206a03205", "grpo.log",
        "909fbaee8aa3469bb81fc5fbf7eaa6379f804a74ba32e82aff28997ad595d4a9",
        (
            "verl's workers could not import flash_attn_2_cuda (undefined symbol); the driver then failed to "
            "get register_center_actor"
        ),
        right="undefined symbol|flash_attn|register_center_actor", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="undefined symbol|flash_attn", held=True, day=11),
    Input("reason4rec", CRASH, "diagnose",
        "innocentbai/Reason4Rec-GRPO@9c84f9b87fd2816124967a5790bb1ac9d245ec2b", "vllm_server.log",
        "4e34833ce6dd0b6f88787218a2d04f4465db0d500c31e66304aba2542b8dee0b",
        (
            "vLLM's server was ended from outside (KeyboardInterrupt: terminated) while it started; by whom is "
            "not in these lines"
        ),
        right="terminated|KeyboardInterrupt|SIGTERM|interrupt", abstains=UNTOLD,
        never="✔|✖",
        root="terminated|KeyboardInterrupt|SIGTERM|interrupt", day=11),
    Input("qwen3vlt4", CRASH, "diagnose",
        "zjpzhao/vllm-qwen3vl-cu118-t4@bc3dd0912b1bc42bb99f232cfe03cf09ff65c787", "logs/verify_qwen3vl.log",
        "2cf4d697f3529b2d7a22a1f4524a16da2bb45883815572f5d01e23a83a890b67",
        "vLLM's engine did not start: Triton Error [CUDA]: device kernel image is invalid",
        right="Triton Error|kernel image", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="Triton Error|kernel image", held=True, day=11),
    Input("qwen3vlflex", CRASH, "diagnose",
        "zjpzhao/vllm-qwen3vl-cu118-t4@bc3dd0912b1bc42bb99f232cfe03cf09ff65c787", "logs/verify_qwen3vl_flex.log",
        "6233ef397cc6262c77907c3e13139bd356e323dbcbe03d28b268a666c97c20b2",
        "vLLM's engine died: InductorError, PassManager::run failed, while it compiled a Triton kernel",
        right="PassManager|InductorError", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="PassManager", held=True, day=11),
    Input("alignsft", CRASH, "diagnose",
        "chtmp223/alignment-handbook@39648eecad8818c3d51d0c4349555aef5a3f5701", ".logs/llama_lora_25024996.out",
        "a19e9dbbcd76245e048856ba03ec0d8f79d0b94e348585faf02d3cb4f112e33e",
        "all four ranks ended in KeyError: 'text' at run_sft.py, line 158; torchrun reports exit code 1",
        right="KeyError", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="KeyError", day=11),
    Input("corenetkey", CRASH, "diagnose",
        "madehua98/corenet@2de6fa830a46245c29d9e7f79935f2b3e51eaee0", "finetune/finetune1.out",
        "046b6a2b5896ddc287fe116e0a2223e684afc0feb33727723d84674e65717321",
        (
            "Ctrl-C ended the training in epoch 6; the pin-memory threads' ConnectionResetErrors and EOFErrors "
            "are what it left behind"
        ),
        right="[Kk]eyboard|interrupt", abstains=UNTOLD,
        never="✔|✖",
        root="[Kk]eyboard|interrupt", day=11),
    Input("corenetuec", CRASH, "diagnose",
        "madehua98/corenet@2de6fa830a46245c29d9e7f79935f2b3e51eaee0", "finetune/out/uec_foodv_small.out",
        "029d1d7fd5362a98f630deb5ed7e8409930d35374e38ded70c869bf5abbfc4a1",
        (
            "process 0 ended in cv2.error: cvtColor got an empty image in a data-loader worker; the images "
            "could not be opened"
        ),
        right=r"cvtColor|cv2|_src\.empty|can't open", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"cvtColor|cv2|_src\.empty|can't open", day=11),
    Input("corenetstore", CRASH, "diagnose",
        "madehua98/corenet@2de6fa830a46245c29d9e7f79935f2b3e51eaee0", "finetune/out/seg_foodv_base_224.out",
        "e60631ce823c19ee1e8ea941f0badc46509b8b7f49dcf6c9d12116bdd1fbbb32",
        (
            "rank 0 waited 601 s for 4 clients of its store and 3 came (ranks 0 to 2 began); then it was "
            "interrupted from the keyboard"
        ),
        right="clients joined|3/4|3 of 4|[Rr]ank 3", abstains=UNTOLD,
        never="✔|holds no evidence|crashed: UnpicklingError",
        root="clients joined|3/4|3 of 4|[Rr]ank 3", held=True, day=11),
    Input("teeb1", CRASH, "diagnose",
        "vyjur/master-project@ce0c5eb04922d8ad88ebf65f90dc4d2fb2f5df30", "models/tee/model/b1.err",
        "5aaaae573d1a5c7fb5d758569d8a788303eb16c6acdd867c1dfc8f983dd24cfa",
        "Slurm cancelled job 21389639 in the midst of its epochs; by whom and why is not in these lines",
        right="21389639|[Cc]ancelled|CANCELLED", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="21389639|[Cc]ancelled|CANCELLED", day=11),
    Input("mistralft92", CRASH, "diagnose",
        "mistralai/mistral-finetune#92", "log.txt",
        "1a49991dbc6ae85671ce5757089e3961e7ad902db5cfbbc10f04bb79bc618f43",
        (
            "tracebacks of train.py under fire and FSDP, of several processes, one into the other; the error is"
            " cut off"
        ),
        right=r"[Tt]raceback|train\.py|fully_sharded|module\.py", abstains=UNTOLD,
        never=r"✔|holds no evidence|crashed: fire\.Fire",
        root=r"train\.py|fully_sharded|module\.py", day=11),
    Input("nemo10229", CRASH, "diagnose",
        "NVIDIA-NeMo/Speech#10229", "log.txt",
        "85b89c66eb4ec01b22ff189f22add637816382338bfd7b11421d43ea985e3d6f",
        "task 2 has a traceback in NeMo's restore_from; the error is cut off",
        right="[Tt]raceback|restore_from|nlp_adapter|megatron_gpt", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]ank 0",
        root="nlp_adapter|restore_from|megatron_gpt", held=True, day=11),
    Input("verl2987", CRASH, "diagnose",
        "verl-project/verl#2987", "log.txt",
        "5483c3600bbff27c00b201f2a80464b369549e356283818204390ceb64db56ca",
        (
            "a Ray actor (WorkerDict, pid 909447) died unexpectedly while the SGLang server woke up; why is not"
            " in these lines"
        ),
        right="[Aa]ctor|909447|WorkerDict", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Aa]ctor (has )?died|ActorDied|909447|WorkerDict", day=11),
    Input("trl3394", CRASH, "diagnose",
        "huggingface/trl#3394", "log.txt",
        "2507d8121548f29ada0327e67dfbbc5f9a3aed625b69e3ecb590818b50eaacc3",
        (
            "a traceback of grpo.py through the Trainer's training_step to trl's profiling wrapper; the error "
            "is cut off"
        ),
        right=r"[Tt]raceback|profiling|grpo\.py", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"profiling\.py|grpo\.py|_prepare_inputs", held=True, day=11),
    Input("accel2375", WATCHDOG, "diagnose",
        "huggingface/accelerate#2375", "log.txt",
        "d71efe317b994ba428b9420a08e04bdf40b9228881259127a269fc93df3be3e4",
        (
            "ranks 1, 4, 5, 6 and 7 timed out after 600 s in all-reduce 167 of one element; the lines of rank 3"
            " are cut off, ranks 0 and 2 have none"
        ),
        right="[Aa]ll-?[Rr]educe|ALLREDUCE|167", abstains=UNTOLD,
        never="✔|holds no evidence|left no evidence at all",
        root="[Aa]ll-?[Rr]educe|ALLREDUCE|167", held=True, day=11),
    Input("llmd352", CRASH, "diagnose",
        "llm-d/llm-d#352", "log.txt",
        "256925767cc2fcac5d1f11c4aa26375ce540a9d2affb63f71c98265ef883588e",
        (
            "a worker of vLLM failed to start: NCCL error, unhandled system error; the cause is not in these "
            "lines"
        ),
        right="NCCL error|unhandled system error|system error", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="NCCL error|unhandled system error|system error", day=11),
    Input("ray31828", CRASH, "diagnose",
        "ray-project/ray#31828", "log.txt",
        "490d5e63d08946fca7aa297045725d5ed353c60a367b850273dfeb12d5f17018",
        (
            "Ray Train's worker 0 (pid 1942) returned from its function and then died (connection error code "
            "2); why is not told, Ray lists what might be"
        ),
        right="1942|died|[Ww]orker", abstains=UNTOLD,
        never="✔|holds no evidence|ran out of (host )?memory|was killed by",
        root="1942|died|unexpected", held=True, day=11),
    Input("lmcache2306", CRASH, "diagnose",
        "LMCache/LMCache#2306", "log.txt",
        "659543b6f22658446bacfb47aac8c33ec0e077413c16f74a8e56167003cf4c6f",
        "vLLM's API server saw that the engine is dead; the traceback of EngineCore (pid 697344) is cut off",
        right="EngineCore|EngineDead|engine", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="EngineCore|EngineDead|engine", day=11),
    Input("megatron942", CRASH, "diagnose",
        "NVIDIA/Megatron-LM#942", "log.txt",
        "3948010fcbf36a6eb7475b5b896f7bb93b8223faa55e1a3b88d2e50e4bcdbf73",
        "rank 2 has a traceback of Megatron's pretrain_gpt.py in the forward step; the error is cut off",
        right="[Rr]ank 2|[Tt]raceback|pretrain_gpt", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"pretrain_gpt|schedules|forward_step|module\.py", held=True, day=11),
    Input("megatron1038", CRASH, "diagnose",
        "NVIDIA/Megatron-LM#1038", "log.txt",
        "f13ea8225a02ac27e343d362927cfd1e8d6123acafbe378303c4c3e09cdc9054",
        "an index out of range on the GPU (srcIndex < srcSelectDimSize) on rank 0; the traceback is cut off",
        right="srcIndex|index|device-side", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="srcIndex|index", held=True, day=11),
    Input("baize2", CRASH, "diagnose",
        "project-baize/baize-chatbot#2", "log.txt",
        "cbe56097df559cc26b8165a97adfdb9b065623ef98571200919766fc3feb1911",
        "AttributeError: bitsandbytes' CPU library has no symbol cget_col_row_stats",
        right="cget_col_row_stats", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="cget_col_row_stats", day=11),
    Input("lightning21403", CRASH, "diagnose",
        "Lightning-AI/pytorch-lightning#21403", "log.txt",
        "29516ca40a0cab3107c1388e7a30940d6bebacede764456d837cb7a0d619ffb2",
        "rank 2 has a traceback in Lightning's fit (llamafsdp.py, line 82) in epoch 0; the error is cut off",
        right="[Rr]ank 2|[Tt]raceback|llamafsdp", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"llamafsdp|trainer\.py|_run", day=11),
    Input("pt121209", CRASH, "diagnose",
        "pytorch/pytorch#121209", "log.txt",
        "5a425d53fb47fe116411ac102bf8752b61bee414834d2f6e8474a3c87b31225d",
        "torchrun reports that ranks 0 to 3 ended with exit code 1, rank 0 first; why is not in these lines",
        right="[Rr]anks? 0|exit", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Rr]anks? 0|exit", held=True, day=11),
    Input("vllm27321", CRASH, "diagnose",
        "vllm-project/vllm#27321", "log.txt",
        "e62f5a5f3bfb287e3428892bc7fb413d5af3af3671bbbbb00ef441396ed5b45b",
        "frames of a traceback of vLLM's EngineCore (pid 2003562); the error is cut off",
        right=r"[Tt]raceback|core\.py|EngineCore", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"core\.py|EngineCore", day=11),
)
# fmt: on
