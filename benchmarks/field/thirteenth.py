"""Failing texts of a thirteenth day, a sample by rules (samples.md, docs/field.md): starts, ends, restarts."""

from __future__ import annotations

from benchmarks.field.input import CRASH, UNTOLD, Input

# fmt: off
THIRTEENTH: tuple[Input, ...] = (
    Input("lf9695", CRASH, "diagnose",
        "hiyouga/LlamaFactory#9695",
        "log.txt",
        "3391c218b72cebdebd877c8323fa897a03269824cbb408c28ac59f649edaa1e6",
        (
            "torchrun got death signal 1 (SIGHUP) in step 1663 of 2840 and ends its workers: its terminal was "
            "closed; no rank failed"
        ),
        right=r"SIGHUP|signal 1\b|death signal", abstains=UNTOLD,
        never=r"✔|holds no evidence|[Rr]ank \d+ (died|crashed)|out of memory",
        root=r"SIGHUP|signal 1\b|death signal", held=True, day=13),
    Input("myria123", CRASH, "diagnose",
        "IGNF/myria3d#123",
        "log.txt",
        "68bfb184bb292ab639514b6a7c5d2b6a19df44a6f48bc2c5f5983d662a59ca40",
        (
            "Slurm cancelled step 6053.0 on DEL2212S020 in the preparation of the test set (of DDP), by whose "
            "wish is not in these lines (no time limit is named); tasks were terminated"
        ),
        right="6053|[Cc]ancel|CANCELLED", abstains=UNTOLD,
        never="✔|holds no evidence|time limit",
        root="6053|[Cc]ancel|CANCELLED", held=True, day=13),
    Input("swift64", CRASH, "diagnose",
        "modelscope/ms-swift#64",
        "log.txt",
        "7e637c86dc496e2f3929bde49226265f591e2165764cdf2eca25f97568af2521",
        (
            "torchrun got death signal 1 (SIGHUP) in step 2905 of 25120 and closes its workers: its terminal "
            "was closed; no rank failed"
        ),
        right=r"SIGHUP|signal 1\b|death signal", abstains=UNTOLD,
        never=r"✔|holds no evidence|[Rr]ank \d+ (died|crashed)|out of memory",
        root=r"SIGHUP|signal 1\b|death signal", day=13),
    Input("vllm11737", CRASH, "diagnose",
        "vllm-project/vllm#11737",
        "log.txt",
        "ad31e9a463c18bd386e85fcb8c3bd7d59a3f78242fef531c2de6f0b986d07e53",
        (
            "a worker of vLLM (rank 0, pid 1068781) hit an exception while it served; its traceback is cut "
            "off in worker_busy_loop"
        ),
        right="WorkerProc hit an exception|worker_busy_loop|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence|[Rr]anks? 1",
        root="WorkerProc hit an exception|worker_busy_loop", held=True, day=13),
    Input("recall43", CRASH, "diagnose",
        "Agent-RL/ReCall#43",
        "log.txt",
        "479e30705a1d8fe56b6f7f15e21c774a22afdddb9921cbc10a6192b16626ddf9",
        (
            "the scheduler of SGLang's TP2 hit an exception in prepare_for_extend (schedule_batch.py), in a "
            "Triton kernel; the error is cut off"
        ),
        right="[Ss]cheduler|prepare_for_extend|triton|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="prepare_for_extend|triton|write_req_to_token_pool", day=13),
    Input("verl2355", CRASH, "diagnose",
        "verl-project/verl#2355",
        "log.txt",
        "6de020ff1fd1e065a916c7069f6789bf12e4bcc88a01c0457e14ae86b042dd00",
        "a traceback of verl's main_ppo.py, torn off in Hydra's run_and_report; the error is cut off",
        right="[Tt]raceback|main_ppo|hydra|run_and_report", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="main_ppo|run_and_report", day=13),
    Input("trl1785", CRASH, "diagnose",
        "huggingface/trl#1785",
        "log.txt",
        "cde7e13f19c392575213efd610a491db0a1207767f7d49542a55d3f1dd7ea7f4",
        (
            "a RuntimeError of IPython, in trainer.train() of transformers, cut off before its message; the "
            "prose says that shapes of tensors do not fit"
        ),
        right=r"RuntimeError|[Tt]raceback|trainer\.py", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"RuntimeError|trainer\.py|shape", day=13),
    Input("accel1700", CRASH, "diagnose",
        "huggingface/accelerate#1700",
        "log.txt",
        "9a7a3c3e8fb212422cada0a015b859861c21d331353b0102129e394aced3fff6",
        (
            "a boxed traceback of t5_3b_accel.py, line 202, under FSDP, cut off at its begin; the heading has "
            "the error (ViewBackward0 RuntimeError); the warnings are none of it"
        ),
        right="[Tt]raceback|t5_3b_accel|ViewBackward0", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="t5_3b_accel|ViewBackward0", held=True, day=13),
    Input("megllama14", CRASH, "diagnose",
        "alibaba/Megatron-LLaMA#14",
        "log.txt",
        "a6aa4a08ce3af54142c0157483c91056c597a264767d50f13f218bc305cf0e71",
        "device-side asserts of the loss kernel: a label is out of range (t >= 0 && t < n_classes)",
        right="out of range|[Aa]ssert|n_classes|label", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="out of range|[Aa]ssert|n_classes|label", day=13),
    Input("ray22349", CRASH, "diagnose",
        "ray-project/ray#22349",
        "log.txt",
        "54612fa6484dbc861228b766eb793ff506fcf44cec49cf033e4f9fbbbebfff74",
        (
            "a node of Ray (10.128.0.103) was lost: it missed heartbeats, and its actor (BaseWorkerMixin, pid "
            "5137) died with it"
        ),
        right=r"10\.128\.0\.103|8f205b12|heartbeats|5137|node", abstains=UNTOLD,
        never="✔|holds no evidence|ran out of (host )?memory|was killed by",
        root=r"10\.128\.0\.103|8f205b12|heartbeats|[Nn]ode", day=13),
    Input("pt114097", CRASH, "diagnose",
        "pytorch/pytorch#114097",
        "log.txt",
        "48f57f71a50cee07c1f4981736e08d5508012237e0f4f86d4c05a448c8e0e508",
        (
            "torchrun got SIGTERM, as its user wanted, and ends its four workers; the traceback is torchrun's "
            "own, cut off"
        ),
        right="SIGTERM", abstains=UNTOLD,
        never=r"✔|holds no evidence|[Rr]ank \d+ (died|crashed)",
        root="SIGTERM", held=True, day=13),
    Input("trainer1638", CRASH, "diagnose",
        "kubeflow/trainer#1638",
        "log.txt",
        "d46a15339215df87f8f211362cdefb183e0d1c2299c6bbe3b2eb3c85bb7e38c6",
        (
            "torchrun ended with RendezvousClosedError when it restarted: the rendezvous of the earlier run "
            "is closed; cut off in the call stack"
        ),
        right="RendezvousClosed|[Rr]endezvous", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"RendezvousClosed|[Rr]endezvous (\w+ )*closed", day=13),
    Input("axolotl2684", CRASH, "diagnose",
        "axolotl-ai-cloud/axolotl#2684",
        "log.txt",
        "35538657b8868e930c7a23670ad2075ca0cfa3109aaea2fec51324819da39039",
        (
            "rank 1 waited 1800 s in torch's store for [localhost]:29500, while the main process tokenized "
            "(92 %), and has a traceback since, cut off"
        ),
        right="[Tt]imed? ?out|1800|29500", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Tt]imed? ?out|1800|29500", held=True, day=13),
    Input("funasr2006", CRASH, "diagnose",
        "modelscope/FunASR#2006",
        "log.txt",
        "edcf7de292cd937ec57f9aba6aa6dac31baf9f5d04e49e8ffd2cb7daff876119",
        (
            "rank 2 ran out of GPU memory (336 MiB, of 79.15 GiB 141 MiB free); ranks 3 and 5 waited in all- "
            "reduce 15734 for it until the watchdog"
        ),
        right="[Rr]ank 2.*memory|memory.*[Rr]ank 2", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Rr]ank 2", day=13),
    Input("meetvllm", CRASH, "diagnose",
        "phivan3008/meeting-translator@59159b20b2337c031ca934dbe07146aaf573af70",
        "vllm_serve.log",
        "37a7f2b20246ca0d1f27444e723333e3d0b40d71a7ca84b6403f4e3a1c92fe7c",
        (
            "vLLM's engine core did not start: flashinfer's fd_exchange.py uses array.array[int], which this "
            "Python (3.11) does not know (TypeError: type 'array.array' is not subscriptable)"
        ),
        right=r"array\.array", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"array\.array", held=True, day=13),
    Input("sparksgl", CRASH, "diagnose",
        "sostrowsk/dgx-spark-local-llm@4b5486468ec6941d55c25f0b4f9557c7893d8b58",
        "sglang.log",
        "08ff074ba7b5c5b22d40a1e2a6c743179c4ea13931209a9eead57432c2ee3ff9",
        (
            "SGLang's server ended while it loaded its weights, 47 of 49 shards after 9:32; only the resource "
            "tracker speaks after that, why is not told"
        ),
        right="resource_tracker|leaked|47/49|loading", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="resource_tracker|leaked|47/49|[Ll]oading", day=13),
    Input("spdist", CRASH, "diagnose",
        "wuzw21/spdistiller@6d4a89cfcd28bc07da4f32a552ebadf200b36cd3",
        "logs/nohup.out",
        "1d1b19ef1e113fa788bc1fb1a85cb026b0fbafcb9618ca65056de4a42d7b2c16",
        (
            "two starts of single_generate.py were each Killed (the shell, line 25 of generate.sh): the first "
            "after 5 of 312 batches (2:48 h), the second while it began; most likely the host's memory"
        ),
        right="[Kk]illed|SIGKILL", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Kk]illed|SIGKILL", held=True, day=13),
    Input("hafusion", CRASH, "diagnose",
        "A-SHOJAEI/hierarchical-attention-fusion-urban-scene-parsing@38e60a6a6d2943010575da6292b436ac14bb641c",
        "training_output.log",
        "1b87ea872ddfdaa4512792659a863277ab83109a643e8b1222394934231015d9",
        (
            "the training ended well by early stopping at epoch 16; behind it mlflow.log_artifact failed with "
            "PermissionError: '/media/alireza/D29856C39856A62F'"
        ),
        right="Permission", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="Permission", held=True, day=13),
    Input("wav2vecacc", CRASH, "diagnose",
        "Adodo17SOSSOU/wav2vec2-finetune-accented@8014f3979a689f1da0458e1af696b3207d65813b",
        "logs/finetune.err",
        "87ed06039c554953b31b847608f4f6711a26f794b6bc35d0be7066d45d6c9bcb",
        "TrainingArguments in fine_tune.py, line 104, refuse fp16: the process sees no CUDA device",
        right="FP16|fp16", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="FP16|fp16", day=13),
    Input("robotvdg", CRASH, "diagnose",
        "fridayfang/robot_vdg@0bcd0c4fab0e0a1805d1dcae500475a142c56611",
        "train_full.log",
        "f6488152872c821006556a02940092401fb867765070557a4e55e49c4123b885",
        (
            "training and rendering ended and were evaluated (SSIM 0.899); then get_avg_results_replica.py "
            "found no results.json of office_3/Sequence_1, another scene"
        ),
        right=r"results\.json|FileNotFound", abstains=UNTOLD,
        never="✔|holds no evidence",
        root=r"results\.json", day=13),
    Input("vcaembed", CRASH, "diagnose",
        "Zzsf11/VideoCuttingAgent@4b5f0c326e790c4d43bda35b8e37ebe418b22580",
        "output/Qwen3Embedding_vllm-server.out",
        "cbd46ec6dd2a99c7237742a8c5fa38d87ccdcd67279338ce8a355b8cd14ca9c1",
        (
            "vLLM's server started and served nothing; Slurm cancelled job 5930 on gpuh11 an hour and a half "
            "later, no time limit is named"
        ),
        right="5930|[Cc]ancel|CANCELLED", abstains=UNTOLD,
        never="✔|holds no evidence|time limit",
        root="5930|[Cc]ancel|CANCELLED", day=13),
    Input("spdisteval", CRASH, "diagnose",
        "wuzw21/spdistiller@6d4a89cfcd28bc07da4f32a552ebadf200b36cd3",
        "doc/nohup.out",
        "3458713b7c56702135daed3a55e75f53026bc3cc14103a479daef92fae14dea5",
        (
            "three starts of test_task.py in one file: a second start ran out of memory on GPU 1, which other "
            "processes held; the first was Killed (3531848); the third evaluated gsm8k to its end"
        ),
        right="memory|[Kk]illed", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="memory|[Kk]illed", held=True, day=13),
    Input("berttrm637", CRASH, "diagnose",
        "JerMa88/bert-trm@d1893230d3fb695df52b09b6da9d81beceb24f9a",
        "error_bert_trm_368637.log",
        "abf269efc75cfcdcf0a1ffba92c02126f0124c0fd7fe66d55a0c1c6790d70fa7",
        (
            "all four ranks of pretrain.py: ModuleNotFoundError: No module named 'coolname', their lines run "
            "into each other; torchrun names rank 1, exit code 1"
        ),
        right="coolname", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="coolname", held=True, day=13),
    Input("robotvdgfix", CRASH, "diagnose",
        "fridayfang/robot_vdg@0bcd0c4fab0e0a1805d1dcae500475a142c56611",
        "training_fixed.log",
        "741865654b43a119958d227c0d6da3ec590614c0f75a7d57e870940b7a37bd61",
        (
            "IndentationError: unexpected indent in scene/dataset_readers.py, line 474, while "
            "train_guidedvd.py imports"
        ),
        right="IndentationError|unexpected indent", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="IndentationError|unexpected indent", held=True, day=13),
)
# fmt: on
