"""Traces, snapshots of memory and evidence of machines of a fifth day."""

from __future__ import annotations

from benchmarks.field.input import (
    ALIEN,
    INFERENCE,
    MATRIX,
    NCCL,
    NO_GPU,
    ONE,
    OTHER,
    SEVERAL,
    SNAPSHOT,
    TESTS,
    TEXT,
    Input,
)

AT_BASELINE = "records/track_1_short/2025-12-11_NorMuonOptimsAndFixes/profiler-example-traces/Baseline"

# fmt: off
FIFTH_FILES: tuple[Input, ...] = (
    Input("nano_eight", SEVERAL, "analyze",
        "KellerJordan/modded-nanogpt@f411b3d346aa52d3504324ca93c230fd84c6c07f",
        (
            f"{AT_BASELINE} - 12-11 - 220ff-rank6-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - 6bd4b-rank1-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - 8ad3d-rank7-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - c01bc-rank5-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - cec8d-rank2-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - d9142-rank3-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - e049e-rank0-chrome-trace.json.gz",
            f"{AT_BASELINE} - 12-11 - fd335-rank4-chrome-trace.json.gz",
        ),
        "7871ae225faca9ef22849bf39599d37ea996f22f1b67de2ba09d277753a6a285",
        (
            "8 H100 train; four steps are marked by the host, the GPU runs behind it. In 17 of the last "
            "76 collectives rank 1 comes last, by 1 to 3 ms: of 269 ms that ranks wait, 226 are for rank "
            "1, whose GPU is idle for 35 of 186 ms"
        ),
        right=r"[Rr]ank 1\b", never="✔", day=5),
    Input("nano_hook", ONE, "analyze",
        "KellerJordan/modded-nanogpt@f411b3d346aa52d3504324ca93c230fd84c6c07f",
        "records/track_1_short/2025-10-31_AdamSyncGradientHook/modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz",
        "739b9df58035720ec03453d178013a04b4928b73ef9a6e334d93b62d8449b6cb",
        (
            "rank 0 of 8 H100: GPU busy 297.7 of 303.3 ms, four steps of some 60 ms; the other seven "
            "ranks are not there"
        ),
        right="7 of 8 ranks have no trace|Nothing serious",
        never="waits? for (its|their) hosts? to launch|waits? for input", day=5),
    Input("switch_a100", INFERENCE, "analyze",
        "CodingPlatelets/SwitchTransformers@9a8e4edaa464e071f3c9d32e12ef83b9047dc80c",
        "trace.json",
        "0a1c6fe8bdd05013be9eb3198c348bbd8b92b3a76b673aeb38d0fdaa18e24581",
        (
            "one pass of a model on an A100, no steps marked: 558 ms of Python, the GPU busy 11 ms of it, "
            "from 361 ms on"
        ),
        right="waits? for (its|their) hosts? to launch", abstains="Not judged",
        never=r"✔|a step (takes|would take)|each [\d.,]+ m?s step", day=5),
    Input("spiking_cpu", NO_GPU, "analyze",
        "CongSheng/SpikingConvNN-AudioClassification@34060944cde8d7753e87f19ebf34ef7472bfd979",
        "trace.json",
        "0bd8174f057cf421cbe4d9c6b852f76d5edbf8c71d37c3b0b60bcf7af72d9496",
        (
            "an old torch: 51 operators in 1.5 ms, no step; cudnn_convolution shows that a GPU did the "
            "work, which the trace does not hold"
        ),
        abstains="the trace holds none of them", never="✔|✖|a step (takes|would take)|[Rr]ecord the run on GPUs",
        held=True, day=5),
    Input("luxmea_legacy", NO_GPU, "analyze",
        "KeondoPark/luxmea@eb9f0e1e029232adfa7728e5e4668561a78ee9eb",
        "profiler_trace.json",
        "3a606e873c7880fe2b1dc0e70ff19165ca7fd2feb86d8452678f79ec510ee9f9",
        (
            "the profiler of torch before 1.8: a plain list, no categories, operators of one inference in "
            "3.3 s, first calls of cuDNN in it; no kernels"
        ),
        right="no operator, no kernel and no step|by torch.autograd.profiler",
        abstains="Not judged|the trace holds none of them",
        never="✔|✖|a step (takes|would take)", held=True, day=5),
    Input("cs345_cpu", NO_GPU, "analyze",
        "kqwq/cs345-project@bd8d06a08cfde047895d5fe72e4bc4fa5204f7cf",
        "profile_trace.json",
        "e37ae9123931fc749fb5c562db1435fdc822d27e38470e99830ad66d1675c645",
        "an inference on a CPU by an old torch: 337 operators in 12.9 ms, no step marked, no GPU",
        right="Nothing serious found|the window takes", abstains="Not judged",
        never="✖|▲|a step (takes|would take)", held=True, day=5),
    Input("td_game", TEXT, "analyze",
        "SShion0721/TD_Muzero@13566c52443aaee7b195fe64546f35d8ac277876",
        "trace_0.json",
        "233360091b69883eb6041ebaa0080b514b9faa725ea68290534f6ea1dbc2ce02",
        'the record of a game, an object with "steps" and "actions": no trace',
        right='there is no "traceEvents" list', never="✔|▲|✖", held=True, day=5),
    Input("triton_async", ALIEN, "analyze",
        "cmpark0126/ml-serving-system-building@f567223882995397c4c7751fd2572cb0a3909110",
        "chrome_trace.json",
        "455e6cdd4c10c29daedf2995c1e5317fe0cdb153057e4287d6b3e188ad68dca5",
        (
            "requests of an inference server as 1,000 pairs of asynchronous events (b and e), nothing of "
            "torch"
        ),
        right="it is a Chrome trace|no operator, no kernel and no step", never="✔|▲|✖", held=True, day=5),
    Input("triton_list", TEXT, "analyze",
        "cmpark0126/ml-serving-system-building@0741602a55cb5186cb7668b303876b60de60be66",
        "backup/async_poison.json",
        "458bae6d6aeebfe0ff358ca739735c8d0f9b66e2e4c907da8be8ccc35188685a",
        "Triton server's own trace: a list of timestamps of requests, no Chrome trace",
        right='there is no "traceEvents" list|no operator, no kernel and no step|it is no Chrome trace',
        never="✔|▲|✖", day=5),
    Input("aiu_tp4", OTHER, "analyze",
        "IBM/aiu-trace-analyzer@b156e40cd8abe48a935fd290b450bf93ca62f329",
        "tests/test_data/allreduce_tp4.json",
        "0d5bcbde7bf1633435164571ec8bec602e993f4a40614bac8f008d9cce41ecca",
        "IBM's AIU: an all-reduce of 4 devices as begin and end events, nothing of torch",
        right="it is a Chrome trace|no operator, no kernel and no step", never="✔|▲|✖", held=True, day=5),
    Input("aiu_flex", OTHER, "analyze",
        "IBM/aiu-trace-analyzer@b156e40cd8abe48a935fd290b450bf93ca62f329",
        "tests/test_data/sample_flex_3062_job_4.json",
        "9f205d27c6d79893a4830a10c27aff05f0067d43e18b6fab0cde7ddafd944e06",
        "IBM's AIU: layers of a small network as begin and end events, nothing of torch",
        right="it is a Chrome trace|no operator, no kernel and no step", never="✔|▲|✖", day=5),
    Input("proton_tree", TEXT, "analyze",
        "intel/intel-xpu-backend-for-triton@6c1649935d83fcc8dff48f608f6556cb50d6a6fb",
        "third_party/proton/test/examples/leaf_nodes.json",
        "77c5ba33f606596e24c865e94c190edb74a034ce3c10d0e253665aa8b610fe8c",
        "a tree of kernels by Triton's profiler Proton: a list, no trace",
        right='there is no "traceEvents" list|no operator, no kernel and no step|it is no Chrome trace',
        never="✔|▲|✖", held=True, day=5),
    Input("unitrace_table", TEXT, "analyze",
        "intel/pti-gpu@fcd0ca813a6ce08ea5034ba76fb3da23b9d4baac",
        "tools/unitrace/test/cpp_test/dpc_gemm/gold/linux/h.txt",
        "8c9bc4ada26ef68711e5d28af27e4f8ee8ee7de12c5440e42043b20b52a25492",
        "unitrace's printed tables of Level Zero calls: no trace",
        right="this is not JSON", never="✔|▲|✖", held=True, day=5),
    Input("mem_bcrafton", SNAPSHOT, "memory",
        "bcrafton/assignment2-systems@0c0e8a736edbf5f55ec1a3536fd0f126a9eb9ee9",
        "memory_snapshot.pickle",
        "f9580ce9c09b11836644d21929802a1c2d82945f85dc2a790fa19d28352969c9",
        "4,042 MiB reserved; 2,931 held before and after the recorded events, peak 3,679: steady",
        right=r"tensors hold 3\.59 GiB at the peak.*3\.95 GiB are reserved: 2\.86 GiB in use",
        never="✔|ran out", day=5),
    Input("mem_hanmin", SNAPSHOT, "memory",
        "notHanmin/assignment2-systems@33be88e6487892dd486fcbc60d84fa5fdc2d3a5f",
        "memory_snapshot.pickle",
        "a9ccec9e63a12ff1c3690d58517aa8f6a1e6fd9ad9f0cdb176e778fd14c6c259",
        (
            "22,738 MiB reserved; 15,277 held before and after the recorded events, peak 22,100 to 22,200: events "
            "count what was asked for, segments what was given"
        ),
        right=r"tensors hold 21\.[56]\d GiB at the peak.*22\.21 GiB are reserved: 14\.92 GiB in use",
        never="✔|ran out", held=True, day=5),
    Input("mem_magma", SNAPSHOT, "memory",
        "MAGMA27/assignment2-systems@15883f2b1d6bc52439d8935e280bce430151f361",
        "memory_snapshot.pickle",
        "c8ec7616923c91af2777249867e0bb16cf6fa888dcc85b3b89a202b19e43c7a1",
        "13,524 MiB reserved; 1,314 held before and after the recorded events, peak 13,283",
        right=r"tensors hold 12\.97 GiB at the peak.*13\.21 GiB are reserved: 1\.28 GiB in use",
        never="✔|ran out", day=5),
    Input("mem_select", SNAPSHOT, "memory",
        "Maphsge4/select_n@04d383cd77ae217b1349900f5dd12c7ff15f3f2c",
        "snapshot.pickle",
        "0eae2f082d0813e3b1a14dc919b3ef3130689ab54ef8653b2ddb11b98723935f",
        "17,706 MiB reserved, 15,449 in use at the end, peak 19,839 before segments were given back",
        right=r"tensors hold 19\.37 GiB at the peak.*17\.29 GiB are reserved: 15\.09 GiB in use",
        never="✔|ran out", held=True, day=5),
    Input("mem_wedson1024", SNAPSHOT, "memory",
        "Wedsonlin/assignment2-systems@87b086417ea831f54f7535eb3680f90da0952722",
        "results/medium_1024_training_memory_snapshot.pickle",
        "7645e6a4219351523a6980bc38fd496e296ff9e182b212126fb7c57c5c3c54ac",
        "24,012 MiB reserved, 6,556 in use at the end, 4,864 before, peak 23,090",
        right=r"tensors hold 22\.55 GiB at the peak.*23\.45 GiB are reserved: 6\.40 GiB in use",
        never="✔|ran out", day=5),
    Input("mem_codeloc", SNAPSHOT, "memory",
        "Constructor-Sun/code_location@52e52b22f10002e0a3de5015068774003bc5af92",
        "memory_snapshot.pickle",
        "86ae388c6ff617c91b339318611aff00f0348ab090ea8997c10d4e3fd235a876",
        (
            "three GPUs of one process; GPU 1 ran out: it asked for 5,063 MiB with 91 MiB free and 78 GiB "
            "reserved"
        ),
        right=r"4\.94 GiB", never="✔|(GPU 0|GPU 2) ran out", held=True, day=5),
    Input("cw_alltoall8", TESTS, "doctor",
        "abhivijay96/nccl-tests@76c25b554f5ac8f0d843cda3456f540971d3af47",
        "exps/cw/alltoall_8.txt",
        "8352f49643c49b4cb38a56afcd92a33fb93018ed3007924de361e151280422ff",
        (
            "8 A100 with NVSwitch, a changed nccl-tests that puts [STAT] before each row: 225 and 234 "
            "GB/s at 3 GiB, right values"
        ),
        right=r"8 GPUs.*2[23]\d GB/s at 3 GiB", never="▲|✖|holds no", held=True, day=5),
    Input("cw_incast8", TESTS, "doctor",
        "abhivijay96/nccl-tests@76c25b554f5ac8f0d843cda3456f540971d3af47",
        "exps/cw/incast_8.txt",
        "9a163150977d179dfc1ae90d40329daf83a74ce501fe1ae2b029c0d0929d5ee3",
        "the same program fails before its first row: unhandled cuda error",
        right="began and has no result.*unhandled cuda error", never="✔|Nothing wrong|holds no", day=5),
    Input("cw_reduce2", TESTS, "doctor",
        "abhivijay96/nccl-tests@76c25b554f5ac8f0d843cda3456f540971d3af47",
        "exps/cw/all_reduce_2.txt",
        "ab335995791f5854ba6673b7a97506269c797a74e515bacf4284203285a32416",
        "the same program on 2 A100: 199.5 GB/s at 384 MiB, right values",
        right="2 GPUs.*(199|200) GB/s at 384 MiB", never="▲|✖|holds no", day=5),
    Input("cw_latency", TESTS, "doctor",
        "abhivijay96/nccl-tests@76c25b554f5ac8f0d843cda3456f540971d3af47",
        "exps/cw/latency_100.txt",
        "45846010dd84c61d993f7afbf4f8165af71242c314268cef0f679f8cc699ff32",
        (
            "the same program on 56 pairs of 8 A100, one test after the other: every one says FAILED, all "
            "values wrong"
        ),
        right="wrong", never="✔|Nothing wrong|holds no", held=True, day=5),
    Input("sb_broadcast", TESTS, "doctor",
        "microsoft/superbenchmark@700d6501f110ed17a7016f1b9f2e453926f7b7a1",
        "tests/data/nccl_broadcast.log",
        "d19ecbbd8798e4e1c80f6650c6129a8b6e8fd37b63ee21588466dc274f3c7066",
        "8 A100 in one host: 233 and 235 GB/s at 8 GiB; values were not checked",
        right="8 GPUs.*23[345] GB/s", never="▲|✖", day=5),
    Input("nccltests107", TESTS, "doctor",
        "NVIDIA/nccl-tests#107",
        "log.txt",
        "1d7e21d0569894d0f6c43ea0332d7b010173d4e5019b4d1870d63cb7c766eef7",
        (
            "two processes that do not know each other, each with one rank (rank 0 twice); no row of "
            "results"
        ),
        right="began and has no result|one rank", never="✔|over 2 GPUs|Nothing wrong", held=True, day=5),
    Input("hpcai30", TESTS, "doctor",
        "crickett-hpe/hpc-ai-envs#30",
        "log.txt",
        "56a0a1b378417b00c9523a6ea9700947e3d637a50c3d4c1ee626a0e9be7a5b68",
        "8 MI300X: one row, 161 and 155 GB/s at 8 MiB; the rest is not here",
        right=r"8 GPUs.*1[56]\d GB/s at 8 MiB", abstains="no message was large enough", never="✖|▲",
        held=True, day=5),
    Input("rccl2075", TESTS, "doctor",
        "ROCm/rccl#2075",
        "log.txt",
        "cb467faa0bd1318049479736e6eaed9cefa857cbfb684d7486980ae93522719c",
        (
            "broadcast_perf's last rows without their head: 7.15 GB/s at 128 MiB, right values; which "
            "GPUs is not here"
        ),
        right=r"7\.(1[56] GB/s at 128|2 GB/s at 64) MiB", abstains="no (header|head)", never="✖|▲|holds no", day=5),
    Input("nccl857", NCCL, "doctor",
        "NVIDIA/nccl#857",
        "log.txt",
        "f77193fb88ef37a144fc25916dd168cd125c81c43899bb8b8cdeb8bb2a0b23e1",
        (
            "NCCL 2.10 begins on three GPUs of one host: no InfiniBand library, so sockets on eth0; no "
            "communicator is made in these lines"
        ),
        abstains="made no communicator that the log names", never="✔|✖|TO-P003", day=5),
    Input("nccl634", NCCL, "doctor",
        "NVIDIA/nccl#634",
        "log.txt",
        "67c4970d8355363d4f2854a766a37d711fbab1fa500b7c7f1f49390e91b53919",
        (
            "channels of 16 ranks on 4 hosts, P2P/IPC within hosts; one rank has all rings; nothing of "
            "between the hosts"
        ),
        right="P2P/IPC", abstains="made no communicator that the log names|not tested", never="✔|▲|✖",
        held=True, day=5),
    Input("topo_mp60", MATRIX, "doctor",
        "deepseek-ai/DeepEP#60",
        "log.txt",
        "01befd2eada5cee4f67e647424ff7b8f228c1c0363b83b331c13466b94bba613",
        (
            "nvidia-smi topo -mp, which leaves NVLink out: four of eight rows, GPUs 0 to 3 of NUMA node 0 "
            "over NODE, 14 NICs"
        ),
        right="GPU", abstains="path not known", never="✖|▲|TO-P|no NVLink", day=5),
    Input("topo_ibm1", MATRIX, "doctor",
        "IBM/pytorch-communication-benchmarks#1",
        "log.txt",
        "77d39ad71c0f7f8495503091638a30009e8aeae4a3c31e9f811fcfe443713117",
        "8 H100 with NV18 between all, 6 NICs; the last row is missing",
        right="NVLink between all GPUs: NV18", abstains="path not known", never="▲|✖", day=5),
    Input("sb_nvbandwidth", TEXT, "doctor",
        "microsoft/superbenchmark@700d6501f110ed17a7016f1b9f2e453926f7b7a1",
        "tests/data/nvbandwidth_results.log",
        "80c62d5c7b740017f54b009e1155f5a17459578595c12d5ff8d8a66bf20d9529",
        "nvbandwidth's matrices of copies of a GH200: neither a topology nor nccl-tests",
        right="GB/s", abstains="holds no topology matrix", never="▲|✖|✔", held=True, day=5),
    Input("az_nvlink", TEXT, "doctor",
        "Azure/azhpc-diagnostics@8543969737acaea2d22219952d6d87ab43c3c090",
        "Linux/test/samples/nvlink.bad.out",
        "cd696c11fde1314226bf716471d61615341cc7952b4f33f1c0b4aa5df8200062",
        "nvidia-smi nvlink -s of 8 V100, of which four have inactive links",
        right=r"NVLink of GPU3: 4 of 6 links up[\s\S]*NVLink of GPU6: 5 of 6", never="✔", held=True, day=5),
    Input("pai_smi", TEXT, "doctor",
        "microsoft/pai@a95d9420e63e6d6cce2d5cd001b990bb09bf2987",
        "src/job-exporter/test/data/nvidia_smi_out_of_order.xml",
        "7e730a4701487d6cce8730f31bc80bad57da50b3dedd02811cdcc90a5778588b",
        "nvidia-smi -q -x of 4 K80: XML, but no topology; no persistence mode, two GPUs with two retired pages",
        right=r"persistence mode: all GPUs: off[\s\S]*GPU0: 2 pages retired", never="▲|✖|✔", held=True, day=5),
)
