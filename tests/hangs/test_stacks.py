"""Stacks as faulthandler, py-spy and gdb write them, and what the main thread is said to be doing."""

# ruff: noqa: E501 (messages stand as they are written)

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.evidence import Frame, ThreadStack
from traceops.hangs.readers.stacks import read_stacks, sniff
from traceops.hangs.stack_activity import is_own, stack_activity
from traceops.hangs.words import activity_text

DATA = Path(__file__).parents[1] / "data" / "hang_logs"
STACKS = sorted(path.name for path in (DATA / "stacks").iterdir())


@pytest.fixture
def write(tmp_path):
    """The path of a file with this text."""

    def written(text: str) -> str:
        path = tmp_path / "stacks_rank_0.txt"
        path.write_text(text)
        return str(path)

    return written


def main_of(name: str):
    stacks = read_stacks(str(DATA / "stacks" / name), 1)
    assert stacks.rank == 1
    assert sum(thread.main for thread in stacks.threads) == 1
    return stacks.main


@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_told_from_logs(name):
    assert sniff(str(DATA / "stacks" / name)) == "stacks"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.stem)
def test_logs_are_told_from_stacks(path):
    assert sniff(str(path)) == "log"


@pytest.mark.parametrize("name", ["faulthandler_3.10.txt", "faulthandler_3.13.txt", "pyspy.json.txt", "gdb.txt"])
def test_two_threads(name):
    stacks = read_stacks(str(DATA / "stacks" / name), 0)
    assert len(stacks.threads) == 2
    main = main_of(name)
    if name == "gdb.txt":
        assert main.native
        assert main.frames[0].function == "__GI___clock_nanosleep"
        assert main.frames[0].file.endswith("clock_nanosleep.c")
        assert main.frames[2] == Frame("time_sleep", "./Modules/timemodule.c", main.frames[2].line)
        return
    assert [frame.function for frame in main.frames] == ["step", "<module>"]
    assert main.frames[0] == Frame("step", "/home/user/train/sleeper.py", 8)
    other = next(thread for thread in stacks.threads if not thread.main)
    assert "wait_lock" in [frame.function for frame in other.frames]
    if name == "pyspy.json.txt":
        assert other.name == "loader"


@pytest.mark.parametrize("writer", ["faulthandler", "pyspy"])
@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("init_0", "init", "setting up communication in init_process_group, called from <module> (stuck.py:11)"),
        ("gather_0", "collective", "waiting in all_gather_object, called from step (stuck.py:28)"),
        ("loader_1", "input", "loading data in __getitem__ (stuck.py:15)"),
        ("loader2_1", "input", "waiting for a batch of data, called from main_ (stuck.py:33)"),
        ("event_1", "lock", "waiting for a lock or another thread in wait, called from step (stuck.py:20)"),
        ("sub_1", "subprocess", "waiting for another process in run, called from step (stuck.py:21)"),
        ("save_1", "checkpoint", "saving or loading a checkpoint in save, called from step (stuck.py:22)"),
        ("sleep_0", "backward", "in the backward pass, called from step (stuck.py:25)"),
        ("sleep_1", "user", "in step (stuck.py:18)"),
    ],
)
def test_stack_activity(writer, case, kind, text):
    told = stack_activity(main_of(f"{writer}_{case}.txt"))
    assert (told.kind, activity_text(told)) == (kind, text)
    assert told.where.file.endswith("stuck.py")


@pytest.mark.parametrize(
    ("case", "kind", "function"),
    [
        ("sleep_0", "collective", "c10d::Reducer::finalize_backward"),
        ("sleep_1", "sleep", None),
        ("loader2_1", "input", None),
    ],
)
def test_compiled_code_tells_more(case, kind, function):
    main = main_of(f"pyspy_native_{case}.txt")
    assert not main.native
    told = stack_activity(main)
    assert told.kind == kind
    assert function is None or function in activity_text(told)


SITE = "/opt/torch/lib/python3.12/site-packages"
OWN = Frame("step", "/home/user/train.py", 128)


@pytest.mark.parametrize(
    ("frames", "kind", "text"),
    [
        ([("wait", f"{SITE}/torch/distributed/device_mesh.py")], "init", "setting up communication in wait"),
        (
            [
                ("barrier", f"{SITE}/torch/distributed/distributed_c10d.py"),
                ("init_process_group", f"{SITE}/torch/distributed/distributed_c10d.py"),
            ],
            "init",
            "setting up communication in init_process_group",
        ),
        ([("synchronize", f"{SITE}/torch/cuda/__init__.py")], "gpu_sync", "waiting for the GPU in synchronize"),
        ([("cudaStreamSynchronize", "libcudart.so.12")], "gpu_sync", "waiting for the GPU in cudaStreamSynchronize"),
        (
            [("cuCtxSynchronize", "libcuda.so.1"), ("at::native::_local_scalar_dense_cuda", "libtorch_cuda.so")],
            "gpu_sync",
            "waiting for the GPU in cuCtxSynchronize",
        ),
        ([("wait_tensor", "torch/distributed/_functional_collectives.py")], "collective", "waiting in wait_tensor"),
        ([("sync", f"{SITE}/torch/nn/parallel/distributed.py")], "library", "in sync (distributed.py:1)"),
        ([("_sync_buffers", f"{SITE}/torch/nn/parallel/distributed.py")], "collective", "waiting in _sync_buffers"),
        ([("get_code", "<frozen importlib._bootstrap_external>")], "import", "importing a module"),
        ([("interaction", "/usr/lib/python3.12/pdb.py")], "debugger", "stopped in a debugger"),
        ([("acquire", f"{SITE}/filelock/_api.py")], "lock", "waiting for a lock or another thread in acquire"),
        (
            [("wait", "threading.py"), ("SimpleQueue.get", "multiprocessing/queues.py")],
            "input",
            "waiting for a batch of data",
        ),
        ([("read", "/usr/lib/python3.12/socket.py")], "network", "waiting for the network in read"),
        ([("forward", f"{SITE}/transformers/modeling.py")], "library", "in forward (modeling.py:1)"),
    ],
)  # fmt: skip
def test_stack_activity_by_function_and_file(frames, kind, text):
    above = [Frame(function, file, 1) for function, file in frames]
    told = stack_activity(ThreadStack(True, (*above, OWN)))
    assert (told.kind, activity_text(told)) == (kind, f"{text}, called from step (train.py:128)")
    assert told.where == OWN


def test_nothing_of_the_user_s_own_on_the_stack():
    package = Frame("train", f"{SITE}/transformers/trainer.py", 7)
    told = stack_activity(
        ThreadStack(True, (Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 1), package))
    )
    assert (told.kind, told.where) == ("collective", package)
    assert stack_activity(ThreadStack(True, ())).kind == "unknown"
    assert stack_activity(ThreadStack(True, (Frame("poll", "libc.so.6"),))).kind == "library"
    assert stack_activity(ThreadStack(True, (Frame("0x12", ""),))).kind == "unknown"


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/user/train.py", True),
        ("train.py", True),
        ("my_model/layers.py", True),
        ("/home/user/torch/train.py", True),
        ("/home/user/torch/runs/train.py", True),
        ("/src/pytorch/torch/distributed/distributed_c10d.py", False),
        (f"{SITE}/accelerate/x.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("threading.py", False),
        ("multiprocessing/queues.py", False),
        ("torch/_tensor.py", False),
        ("<frozen runpy>", False),
        ("libcudart.so.12", False),
        ("/tmp/torchinductor_user/ab/cab.py", False),
        ("/cache/4a/c4aetlkdz3n2tbj47mf7zotx6io6jwdtzhw6ijzod3vuaqnz37pt.py", False),
        ("/home/me/torchinductor_bench/train.py", True),
        ("/work/collate_batches_of_pictures_and_labels_for_the_model.py", True),
    ],
)
def test_the_user_s_own_code(file, own):
    assert is_own(Frame("f", file, 1)) is own


FAULT = 'Thread 0x0000000000000002 (most recent call first):\n  File "/x/worker.py", line 1 in work\n\n'


def test_the_first_line_tells_the_main_thread(write):
    text = f'# rank 3, pid 9, main thread 0x0000000000000002\n\n{FAULT}Thread 0x1 (most recent call first):\n  File "/x/a.py", line 1 in f\n'
    assert read_stacks(write(text), 3).main.frames[0].function == "work"
    assert sniff(write(text)) == "stacks"
    assert sniff(write(text.partition("\n")[0])) == "stacks"
    other = text.replace(", pid", " pid").replace(", main thread ", " main thread ")
    assert read_stacks(write(other), 3).main.frames[0].function == "work"


def test_the_last_of_several_dumps_counts(write):
    dump = FAULT + 'Current thread 0x1 (most recent call first):\n  File "/x/train.py", line {} in step\n'
    stacks = read_stacks(write(dump.format(1) + dump.format(2) + dump.format(3)), 0)
    assert len(stacks.threads) == 2
    assert stacks.main.frames[0].line == 3


def test_a_dump_that_was_cut_off_does_not_hide_the_one_before(write):
    dump = FAULT + 'Thread 0x1 (most recent call first):\n  File "/x/train.py", line {} in step\n'
    header = "# rank 0, pid 1, main thread 0x0000000000000001\n"
    cut = dump.format(2)[: len(FAULT)]
    assert read_stacks(write(header + dump.format(1) + cut), 0).main.frames[0].line == 1


@pytest.mark.parametrize("between", ["Fatal Python error: Aborted\n\n", "Timeout (0:00:05)!\n", "\n"])
def test_dumps_are_told_apart(write, between):
    dump = 'Thread 0x{} (most recent call first):\n  File "/x/train.py", line {} in step\n'
    stacks = read_stacks(write(dump.format(1, 1) + between + dump.format(1, 2)), 0)
    assert [thread.frames[0].line for thread in stacks.threads] == [2]


def test_wording_of_python_3_14(write):
    text = (
        "Thread 0x00007f2b [loader] (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x00007f2a [python] (most recent call first):\n  File "/x/train.py", line 7 in step\n'
        '  File "/x/train.py", line ??? in <module>\n  ...\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/lib/libc.so.6", at raise+0x1 [0x7f]\n  <truncated rest of calls>\n'
    )
    stacks = read_stacks(write(text), 0)
    assert [(thread.name, thread.main, len(thread.frames)) for thread in stacks.threads] == [
        ("loader", False, 0),
        ("python", True, 2),
    ]
    assert stacks.main.frames[1].line is None


def test_a_thread_without_a_number(write):
    stacks = read_stacks(write('Stack (most recent call first):\n  File "/x/train.py", line 7 in step\n'), 0)
    assert stacks.main.frames[0].line == 7


def test_local_variables_of_py_spy_are_no_frames(write):
    text = (
        'Process 1: python train.py\nPython v3.12.1 (/usr/bin/python3.12)\n\nThread 0x7F9B8E2C8740 (active+gil): "MainThread"\n'
        "    step (train.py:12)\n        Arguments:\n            x: f (a.py:3)\n    main (train.py:14)\n"
        "Process 2: python worker\nPython v3.12.1 (/usr/bin/python3.12)\n"
    )
    stacks = read_stacks(write(text), 0)
    assert [frame.function for frame in stacks.main.frames] == ["step", "main"]


def test_files_without_stacks(write, tmp_path):
    for text in ("", "epoch 1\n", "[", '[{"frames": [}', "# rank 3, pid 9, main thread 0x1\n"):
        with pytest.raises(InputError):
            read_stacks(write(text), 0)
    assert sniff(write("")) is None
    assert sniff(write("epoch 1\nepoch 2\n")) == "log"
    with pytest.raises(InputError):
        sniff(str(tmp_path / "none"))


def test_a_crash_in_the_middle_of_a_log_leaves_it_a_log(write):
    text = "[rank0]: hello\nFatal Python error: Segmentation fault\n\n" + FAULT
    assert sniff(write(text)) == "log"


def test_json_of_other_tools(write):
    text = '[{"pid": 1, "frames": [{"name": 3}, {"name": "f", "filename": null, "line": "x"}, 7]}, {"frames": 1}, 5]'
    stacks = read_stacks(write(text), 0)
    assert [thread.frames for thread in stacks.threads] == [(Frame("f", ""),)]
    assert stacks.main is None


def test_data_parallel_on_a_stack_or_in_a_traceback_is_told(tmp_path):
    (tmp_path / "train.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "/me/train.py", line 9, in main\n    model(x)\n'
        '  File "/site-packages/torch/nn/parallel/data_parallel.py", line 191, in forward\n    return gather()\n'
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    assert any("nn.DataParallel" in note and "DistributedDataParallel" in note for note in diagnose(tmp_path).notes)
