"""Crashes of train.py that the program makes, and ways in which its process ends."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.crashes.step import DIM, FOREVER_S, Step


def import_missing(step: Step) -> None:
    import a_module_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401  # here


def import_name(step: Step) -> None:
    from torch.nn import NoSuchLayer  # type: ignore[attr-defined]  # noqa: F401  # here


def assertion(step: Step) -> None:
    loss = step.loss()
    assert loss < 0, "the loss must fall"  # here


def key_error(step: Step) -> None:
    batch = {"inputs": step.batch}
    step.model(batch["labels"])  # here


def matmul_shapes(step: Step) -> None:
    nn.Linear(DIM // 2, DIM, device=step.device)(step.batch)  # here


def dtypes_differ(step: Step) -> None:
    nn.Linear(DIM, DIM, device=step.device)(step.batch.bfloat16())  # here


def label_on_cpu_out_of_range(step: Step) -> None:
    nn.functional.cross_entropy(step.model(step.batch).cpu(), torch.full((16,), DIM))  # here


def token_on_cpu_out_of_range(step: Step) -> None:
    nn.Embedding(100, DIM)(torch.tensor([100]))  # here


def nan_stops(step: Step) -> None:
    print("Loss is nan, stopping training")
    sys.exit(1)


def nan_raises(step: Step) -> None:
    loss = step.loss() * float("nan")
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()} at step 4")  # here


def nan_asserted(step: Step) -> None:
    loss = step.loss() / 0
    assert torch.isfinite(loss).all(), f"non-finite loss: {loss.item()}"  # here


def file_missing(step: Step) -> None:
    Path("/data/shards/train_00000.bin").read_bytes()  # here


def recursion(step: Step) -> None:
    recursion(step)  # here


def wrapped(step: Step) -> None:
    try:
        dict[str, int]()["tokens"]  # here
    except KeyError as error:
        raise RuntimeError("the training failed") from error


def logged(step: Step) -> None:
    try:
        [].pop()  # here
    except IndexError:
        logging.exception("training crashed")
        sys.exit(1)


def thread_then_assertion(step: Step) -> None:
    thread = threading.Thread(target=lambda: dict[str, int]()["metrics"])
    thread.start()
    thread.join()
    assert step.batch.shape[0] == 8, "a batch of 16 where 8 was asked for"  # here


def sys_exit_message(step: Step) -> None:
    sys.exit("config.yaml: unknown optimizer 'adamw2'")


def arguments(step: Step) -> None:
    argparse.ArgumentParser().parse_args(["--local-rank", "1"])


def elastic_record(step: Step) -> None:
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def inner() -> None:
        raise ValueError("the shard of this rank is empty")  # here

    inner()


# --- how processes end


def sigkill(step: Step) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sigterm(step: Step) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FOREVER_S)


def sigsegv(step: Step) -> None:
    ctypes.string_at(0)


def sigsegv_with_handler(step: Step) -> None:
    faulthandler.enable()
    ctypes.string_at(0)  # here


def abort(step: Step) -> None:
    os.abort()


def sigbus(step: Step) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def os_exit(step: Step) -> None:
    os._exit(3)


def exit_zero(step: Step) -> None:
    sys.exit(0)
