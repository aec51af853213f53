"""What the numbers of out-of-memory messages come to, as they were posted on GitHub and as torch words them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from traceops.hangs.crashes import memory_message
from traceops.hangs.diagnose import diagnose
from traceops.hangs.words import memory_told

GIB = 1 << 30
# torchtune issue 2071: the driver told nothing of this process
NONE_TOLD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 5 has a total capacity of 23.43 GiB "
    "of which 210.06 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the "
    "allocated memory 22.41 GiB is allocated by PyTorch, and 206.09 MiB is reserved by PyTorch but unallocated."
)
# ROCm TheRock issue 4598: more is free than there is
MORE_FREE = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.49 GiB "
    "of which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch, and 8.08 GiB is reserved "
    "by PyTorch but unallocated."
)
# NVIDIA k8s-device-plugin issue 323: another pod on a T4 that is shared by time slices
SHARED_T4 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 4.37 GiB already "
    "allocated; 14.75 MiB free; 4.43 GiB reserved in total by PyTorch)"
)
# erikguo/yolov3 issue 4: torch before 1.4 tells what it caches beside the tensors, not the sum
CACHED = (
    "RuntimeError: CUDA out of memory. Tried to allocate 338.00 MiB (GPU 0; 10.91 GiB total capacity; 7.62 GiB "
    "already allocated; 23.00 MiB free; 2.10 GiB cached)"
)
# EveryVoice issue 178: in a container, where a process does not know its own number
FULL = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 2 has a total capacty of "
    "15.78 GiB of which 27.19 MiB is free. Process 307065 has 15.75 GiB memory in use. Of the allocated memory 14.24 "
    "GiB is allocated by PyTorch, and 177.74 MiB is reserved by PyTorch but unallocated."
)
SEVERAL_IN_CONTAINER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 512.00 MiB is free. Process 11 has 40.10 GiB memory in use. Process 12 has 19.30 GiB memory in use. "
    "Process 13 has 19.20 GiB memory in use. Of the allocated memory 18.20 GiB is allocated by PyTorch, and 520.50 "
    "MiB is reserved by PyTorch but unallocated."
)
OWN_OUTSIDE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.04 GiB memory in use. Of the "
    "allocated memory 40.20 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated."
)
POOLS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 0.10 GiB is free. Including non-PyTorch memory, this process has 79.04 GiB memory in use. Of the "
    "allocated memory 76.20 GiB is allocated by PyTorch, with 21.50 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and 520.50 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "cause", "said"),
    [
        (NONE_TOLD, "too_large", "tensors take 22.41 GiB"),
        (MORE_FREE, None, "it asked for 16.00 GiB"),
        (SHARED_T4, "outside", "other processes, or other libraries in this one, hold the other 10.32 GiB"),
        (CACHED, "fragmented", "2.10 GiB is reserved but unallocated"),
        (FULL, "full", "nearly all else of the GPU is in use"),
        (SEVERAL_IN_CONTAINER, "outside", "hold the other 59.94 GiB"),
        (OWN_OUTSIDE, "outside_own", "outside of torch's allocator this process holds another 37.34 GiB"),
        (POOLS, "too_large", "(21.50 GiB of it in pools of their own, as CUDA graphs have)"),
    ],
)
def test_who_holds_the_memory(text: str, cause: str | None, said: str) -> None:
    told = memory_message(text)
    assert told.cause == cause and said in memory_told(told)


def test_fragments_beyond_what_others_hold_are_the_cause() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is "
        "free. Process 7 has 13.00 GiB memory in use. Including non-PyTorch memory, this process has 66.00 GiB memory "
        "in use. Of the allocated memory 35.00 GiB is allocated by PyTorch, and 30.00 GiB is reserved by PyTorch but "
        "unallocated."
    )
    assert memory_message(text).cause == "fragmented"
    assert memory_message(text.replace("35.00", "64.00").replace("30.00", "1.00")).cause == "others"


# pytorch/pytorch issue 182286, which has each sentence on a line of its own
REFUSED = (
    "torch.OutOfMemoryError: CUDA out of memory.\nTried to allocate 3.48 GiB.\nGPU 0 has a total capacity of 95.59 GiB "
    "of which 50.40 GiB is free.\nIncluding non-PyTorch memory, this process has 17179869184.00 GiB memory in use.\nOf "
    "the allocated memory 42.49 GiB is allocated by PyTorch,\nand 47.72 MiB is reserved by PyTorch but unallocated."
)
PLACE = 'Traceback (most recent call last):\n  File "/x/train.py", line 8, in step\n    model(batch)\n'
ONE_LINE = REFUSED.replace("\n", " ")


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("label", ["", "[rank0]: ", "0: [rank0]: ", "[default0]:", "2026-01-02 03:04:05,006 ERROR x: "])
@pytest.mark.parametrize(
    "message",
    [
        REFUSED,
        REFUSED.replace(" 0 has", " 3 has").replace(
            "Including", "\n".join(f"Process {pid} has 1.00 GiB memory in use." for pid in range(4)) + "\nIncluding"
        ),
        *("\n".join(textwrap.wrap(ONE_LINE, width)) for width in (45, 60, 80, 120)),
        *("\n".join(ONE_LINE[at : at + width] for at in range(0, len(ONE_LINE), width)) for width in (76, 80, 101)),
    ],
)
def test_the_numbers_of_a_message_on_several_lines_are_its_own(told, label: str, message: str) -> None:
    (root,) = told(labelled(label, PLACE + message) + "bye\n").roots
    assert (root.rule, root.cause) == ("TO-E001", "refused")
    assert "3.48 GiB with 50.40 GiB free of 95.59 GiB" in root.statement
    assert "47.72 MiB is reserved" in root.statement


def test_a_message_without_numbers_takes_none_of_other_lines(told) -> None:
    """Nor does one take another rank's, nor those of a second message."""
    alone = "RuntimeError: CUDA out of memory.\nstep 7: 3.00 GiB of memory in use\n"
    (root,) = told(PLACE + alone).roots
    assert "3.00 GiB" not in root.evidence[0][1]
    (root,) = told(f"{PLACE}{alone.splitlines()[0]}\nOther: {ONE_LINE}\n").roots
    assert root.evidence[0][1].count("Tried to allocate") <= 1
    two = "CUDA out of memory.\nCUDA out of memory.\nTried to allocate 1.00 GiB.\nTried to allocate 2.00 GiB.\n"
    (root,) = told(PLACE + "RuntimeError: " + two).roots
    assert "2.00 GiB" not in root.statement


HOST = {
    "lsf": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 130.\n",
    "slurm": (
        "slurmstepd: error: Job 7518 exceeded memory limit (626359956 > 512000000), being killed\nslurmstepd: error: "
        "Exceeded job memory limit\nslurmstepd: error: *** JOB 7518 ON node1 CANCELLED AT 2022-06-10T17:11:35 ***\n"
    ),
    "pbs": "=>> PBS: job killed: mem 33554432kb exceeded limit 32505856kb\n",
    "oomd": "systemd-oomd[700]: Killed /user.slice/x.scope due to memory pressure for /user.slice being 71.90%\n",
    "numpy": (
        'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    x = np.zeros(shape)\n'
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)"
    ),
}
GPU = {
    "driver": "RuntimeError: CUDA driver error: out of memory",
    "hip": "RuntimeError: HIP error: out of memory",
    "cudnn": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "bitsandbytes": "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
}
MAPPED = {
    "by_name": (
        "RuntimeError: unable to mmap 29764 bytes from file </torch_10182_302018_63991>: Cannot allocate memory (12)"
    ),
    "by_descriptor": (
        "RuntimeError: unable to mmap 2048 bytes from file <filename not specified>: Cannot allocate memory (12)"
    ),
}


@pytest.mark.parametrize(
    ("text", "rule", "cause"),
    [
        *((text, "TO-E002", "host_memory") for text in HOST.values()),
        *((text, "TO-E001", "gpu_memory") for text in GPU.values()),
        *((text, "TO-E002", "mappings") for text in MAPPED.values()),
        (
            "RuntimeError: unable to mmap 9000000000 bytes from file <model.pt>: Cannot allocate memory (12)",
            "TO-E002",
            "host_memory",
        ),
    ],
)
def test_memory_that_ran_out_in_other_words(tmp_path: Path, text: str, rule: str, cause: str) -> None:
    raised = f'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    main()\n{text}\n'
    (tmp_path / "rank_0.log").write_text(raised if text.startswith("RuntimeError") else f"step 1\n{text}\n")
    (root,) = diagnose(tmp_path).roots
    assert (root.rule, root.cause) == (rule, cause)


def test_a_kernel_that_needs_too_much_of_an_sm_is_not_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    main()\n'
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 245760, Hardware limit: "
        "232448. Reducing block sizes or `num_stages` may help.\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.rule == "TO-E005"
