"""The other inputs of a sixth day, a sample by rules (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import (
    CLEAN,
    CRASH,
    LOST,
    MATRIX,
    NCCL,
    NO_GPU,
    OPEN,
    TESTS,
    UNMARKED,
    UNTOLD,
    WATCHDOG,
    Input,
)

# fmt: off
SIXTH: tuple[Input, ...] = (
    Input("accelerate847", CRASH, "diagnose",
        "huggingface/accelerate#847", "log.txt",
        "d4f24912cec05093e930ab9aefe9429f58fee988a0c7e2f06acac01280917fd6",
        "local rank 0 (pid 14954) ended with -11, a segmentation fault; each line begins with \"> stderr: \"",
        right="SIGSEGV", never="✔|holds no evidence", day=6),
    Input("fastspeech3", CRASH, "diagnose",
        "xcmyz/FastSpeech#3", "log.txt",
        "c8f010464899de2625f843aa98c755f01fe0af3ea68ac60910b5f0d7722e8390",
        "a traceback through DataParallel whose last lines are missing; the thread says out of memory",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence|GPU memory", held=True, day=6),
    Input("spanner3", CRASH, "diagnose",
        "neulab/SpanNER#3", "log.txt",
        "8dc8b22bf82be9dc7ba1cfa4f5aad265bb4af5e5207688c9735f03b69b7d6f40",
        "a traceback of a Lightning training under DataParallel without its head and its end",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", day=6),
    Input("vllm17854", CRASH, "diagnose",
        "vllm-project/vllm#17854", "log.txt",
        "c3024c9da27e50acf5051ca3e2ca3a3430d7d397337c1a221525f1e4c547bd14",
        "the tracebacks of two workers of vLLM, mixed: init_device failed on ranks 0 and 1; why is not in these lines",
        right="[Tt]raceback", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=6),
    Input("aria24", CRASH, "diagnose",
        "rhymes-ai/Aria#24", "log.txt",
        "70477478af2889340461e85bd78ef0bced04fe1779f97c536b7429b9669ba49a",
        "out of memory on GPU 3: 1.88 GiB asked, 1.29 free, 1.32 reserved and not used",
        right="ran out of GPU memory", never="✔|holds no evidence", held=True, day=6),
    Input("ray16933", CRASH, "diagnose",
        "ray-project/ray#16933", "log.txt",
        "3aa7a6fe33bf62b9ad771f080cdfeb7da5be4f0e2611acacbeac5ddaaf488eb3",
        "Ray's log monitor failed with a TypeError and exit code 1, and Ray says that it kills its other processes",
        right="log_monitor|TypeError", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=6),
    Input("vllm38602", MATRIX, "doctor",
        "vllm-project/vllm#38602", "log.txt",
        "42ec4bd431596f00bca9b5e6087634b0bf69ebc7958d1b31e980f209a2e429c2",
        (
            "rows of nvidia-smi topo -m without their head, behind times: eight GPUs with NV18 between all; the "
            "job succeeded"
        ),
        right="NV18", abstains="holds no topology matrix", never="✖|▲|PCIe", day=6),
    Input("nccl1591", NCCL, "doctor",
        "NVIDIA/nccl#1591", "log.txt",
        "2d6850d6e99994ac2eaa3d05d5e5d8521c0eecc5df0dd3cf96ab47441d21a9b1",
        (
            "NCCL 2.21.5 on one host draws its machine: two GPUs on NVLink to a switch, so far as the lines go; "
            "nothing failed in them"
        ),
        right=r"NCCL 2\.21\.5|NVLink", abstains="holds no|no connections?|not tested", never="✖|▲", day=6),
    Input("nccl226", NCCL, "doctor",
        "NVIDIA/nccl#226", "log.txt",
        "21999784c629f38d930c4e2978140d0a02de95bc9701699c0c4139dd35f6958e",
        "18 hosts, one process each: NCCL binds it to CPUs; nothing else is told",
        right="18 hosts|affinity", abstains="holds no|no connections?|not tested", never="✖|▲", day=6),
    Input("nccltests78", MATRIX, "doctor",
        "NVIDIA/nccl-tests#78", "log.txt",
        "729f5b6ccba23fd2069e3aedc82aa0044b33f834facf65a53059dc17ea3a9e09",
        (
            "nvidia-smi topo -m of 16 GPUs and 10 NICs, NV6 between all; the rows from GPU4 on are missing, that "
            "of GPU4 in part"
        ),
        right=r"16 GPUs.*NV6", abstains="not known|cut|incomplete", never="✖|▲", day=6),
    Input("nccltests232", TESTS, "doctor",
        "NVIDIA/nccl-tests#232", "log.txt",
        "b3b196207556539b0b497755db51c89924bb2b4614759630f3293cb174750e90",
        "all-reduce over two hosts of one GPU: 41 GB/s at 32 MiB; the table is cut there, larger sizes are missing",
        right=r"4[01](\.\d+)? GB/s", never="✖", day=6),
    Input("vllm6042", WATCHDOG, "diagnose",
        "vllm-project/vllm#6042", "log.txt",
        "6c92845726a1daa68e1d190c2bd5e10f2d744483e9bc33d1cc157ccbbf94cf64",
        "rank 1 waits in gather 158046, its last call; what the others do is not here",
        right=r"gather #158046\b", never="✔|holds no evidence", held=True, day=6),
    Input("pytorch20355", NCCL, "doctor",
        "pytorch/pytorch#20355", "log.txt",
        "ce4fcd9ba4fb2cf8dbc628bd6e60dbfead6c0b49e747d2e1db56540b28ca724f",
        (
            "NCCL 2.4.6 on one host goes over sockets, for there is no libibverbs; three ranks load a checkpoint; "
            "the hang of the thread is not in these lines"
        ),
        right=r"NCCL 2\.4\.6|enp5s0|Socket", abstains="holds no|no connections?|not tested", never="✖", day=6),
    Input("facemask", CRASH, "diagnose",
        "CMDN-SYCM/face-mask-detection@3c3a3b928ef4e86b325a96b43a558bf014675646", "train.log",
        "99e227c96ec5ae0aa2f5b9e70f27c7b992a034b4c46b0d9b1dab95da32c8dbef",
        (
            "Ultralytics on Windows: a process that multiprocessing started could not read what its parent sent "
            "(pickle data was truncated)"
        ),
        right="UnpicklingError|pickle data was truncated", never="✔|holds no evidence", held=True, day=6),
    Input("olmo", CRASH, "diagnose",
        "AntonioLopardo/OLMo@f2d902491c7ff14443a4ebeca98b0e617b452701", "training.log",
        "22df7e11d3817696f137c0563e55b51b249834862ceaf408af69aa8d516283ec",
        "OLMo on 8 GPUs, an hour in: torchrun got signal 15 (SIGTERM) from outside and ended its workers",
        right="SIGTERM|signal 15", never=r"✔|holds no evidence|rank \d+ (died|crashed)", day=6),
    Input("tccdef", CRASH, "diagnose",
        "RafaelGreg18/tcc-def@042168af732bbf154f9dad5070df97cd1e84e245", "slurm.out",
        "f2f36ed768b94a4c654976779218a9b3acb1fa06506c9e3b9d23d2b621c813eb",
        "Flower's simulation ended with exit status 1 twice; why is not in the log",
        right=r"exit (status|code) 1\b", abstains=UNTOLD, never="✔|holds no evidence", held=True, day=6),
    Input("gec", NO_GPU, "analyze",
        "AleksanderMisztal/gec-with-copying@79c7c6ebc024af0efd94ae1051c9d2068a22b679", "trace.json",
        "cd4f71013c0bd541e9bcdcc491a9268775a09f5af3551d6da0480fcea175f948",
        "an old torch on a CPU: 1,534 operators in 432 ms, all within one range model_inference; no step, no GPU",
        right="the window takes", abstains=OPEN, never=UNMARKED + "|✖|▲", day=6),
    Input("mlops", NO_GPU, "analyze",
        "ChrisVN123/mlops_testmappe@bbe910c277c87d0fd8f0bd6f9cd532eca837ce9e", "trace.json",
        "c692b87b3ce31a157b6913def071b4db691d77004da3e59334de42a7595f8bdc",
        (
            "ten inferences of a ResNet-18 on a CPU, 812 ms together, operators for 719 of them; no step is "
            "marked, no GPU"
        ),
        right=CLEAN, abstains=OPEN, never="✖|▲", day=6),
    Input("epsilon", NO_GPU, "analyze",
        "EpsilonPiDelta/mlops_1@9aa0318baee4de518d016bbfd8ef6b966492747f", "trace.json",
        "b0c54cd0225dc46c11832d02ff4ac83ef76b2a48888e7f5ac652fa351eca576f",
        "ten inferences of a ResNet-18 on a CPU, 232 to 960 ms each; no step is marked, no GPU",
        right=CLEAN, abstains=OPEN, never="✖|▲", held=True, day=6),
    Input("cudaguide", NO_GPU, "analyze",
        "1997MarsRover/cuda-guide@6fa85728a4c93ee9fe194f88efe6b4db6454ff78", "profiler/trace.json",
        "532234e0f585f25445800ddc6486ea6a4fb599191b463fa4fac48d31689ae6d8",
        (
            "ten squares of random tensors, 5.6 s; the file names an RTX 4080, but the profiler recorded "
            "operators only: of the GPU nothing is known"
        ),
        right="the window takes|holds none of them", abstains=OPEN + "|" + LOST,
        never=UNMARKED + "|✖|✔|hosts? to launch", day=6),
    Input("gpupractice", NO_GPU, "analyze",
        "solangii/gpu-practice@90255dc41eae05d2809386e4477970781dad8cfc", "profile/trace.json",
        "dca8f434311358037d71f346f545237db78a38364ca3e1b654adad0d3a904d4d",
        "the same ten squares by an old torch, 11.8 s, 4.4 s of them in the copies to a device; operators only",
        right="the window takes|holds none of them", abstains=OPEN + "|" + LOST,
        never=UNMARKED + "|✖|✔|hosts? to launch", held=True, day=6),
)
# fmt: on
