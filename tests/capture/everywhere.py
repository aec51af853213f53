"""Small programs, each with a result that is the same every time: places in which a look may fall."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

ROUNDS = 150


def _work(n: int = 200) -> int:
    total = 0
    for number in range(n):
        total += number * number
    return total


def in_asyncio() -> Any:
    async def stream(n: int) -> Any:
        for number in range(n):
            await asyncio.sleep(0)
            yield number + _work(20)

    async def task(number: int, told: asyncio.Queue[int]) -> int:
        total = 0
        async for one in stream(10):
            total += one
            await told.put(one)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        if number % 3 == 0:
            raise ValueError(number)
        return total

    async def whole() -> Any:
        told: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        made = [asyncio.create_task(task(number, told)) for number in range(ROUNDS // 5)]
        late = asyncio.create_task(asyncio.sleep(3600))
        aside = await loop.run_in_executor(None, _work)
        found = await asyncio.gather(*made, return_exceptions=True)
        late.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await late
        return [repr(one) for one in found], told.qsize(), aside, late.cancelled()

    return asyncio.run(whole())


def in_generators() -> Any:
    closed: list[int] = []

    def inner(n: int) -> Iterator[int]:
        try:
            for number in range(n):
                got = yield number
                _work(10 if got is None else got)
        finally:
            closed.append(_work(10))

    def outer(n: int) -> Iterator[int]:
        yield from inner(n)
        return (yield -1)

    total = 0
    for number in range(ROUNDS):
        made = outer(number % 20)
        total += sum(one for _, one in zip(range(10), made, strict=False))
        with contextlib.suppress(StopIteration):
            total += made.send(30)  # type: ignore[attr-defined]
        with contextlib.suppress(KeyError, StopIteration):
            made.throw(KeyError())  # type: ignore[attr-defined]
    made = None  # type: ignore[assignment]
    return total, len(closed)


def in_del() -> Any:
    seen: list[int] = []

    class Ends:
        def __init__(self, number: int) -> None:
            self.number, self.own = number, self

        def __del__(self) -> None:
            _work(50)
            seen.append(self.number)

    for number in range(ROUNDS):
        Ends(number)  # in a cycle
        once = Ends(-number)
        once.own = None  # type: ignore[assignment]
        del once
    gc.collect()
    return sorted(seen)


def in_exceptions() -> Any:
    told: list[str] = []

    def fails(depth: int) -> int:
        try:
            _work(20)
            if depth == 0:
                raise ValueError("the innermost")
            return fails(depth - 1)
        except ValueError as error:
            _work(20)
            if depth % 3 == 1:
                raise KeyError(depth) from error
            raise
        except KeyError:
            raise LookupError(depth) from None
        finally:
            told.append(f"{depth} {sys.exc_info()[0]}")

    for number in range(ROUNDS // 3):
        try:
            fails(number % 12)
        except Exception:
            told.append(traceback.format_exc())
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(_work, 30)
                stack.enter_context(contextlib.suppress(ZeroDivisionError))
                told.append(str(1 // (number % 2)))
        except ZeroDivisionError:  # pragma: no cover
            told.append("not suppressed")
    assert sys.exc_info() == (None, None, None)
    return told


def in_signal_handlers() -> Any:
    class Interrupted(Exception):
        pass

    calls = [0, 0]

    def handler(number: int, frame: Any) -> None:
        calls[0] += 1
        _work(50)
        if calls[0] % 2:
            raise Interrupted

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        for _ in range(ROUNDS):
            try:
                signal.raise_signal(signal.SIGUSR2)
                _work(30)
            except Interrupted:
                calls[1] += 1
    finally:
        signal.signal(signal.SIGUSR2, before)
    return calls


def in_an_interrupt() -> Any:
    """Another thread sends Ctrl-C: each is one KeyboardInterrupt, where the main thread can take it."""
    asks: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def sends() -> None:
        while asks.get():
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=sends)
    thread.start()
    taken = 0
    try:
        for _ in range(ROUNDS // 3):
            try:
                asks.put(True)
                while True:
                    _work(50)
            except KeyboardInterrupt:
                taken += 1
    finally:
        asks.put(False)
        thread.join()
        signal.signal(signal.SIGINT, before)
    return taken


def in_callbacks_of_c() -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))

    def compare(one: Any, other: Any) -> int:
        _work(5)
        return int(one[0] > other[0]) - int(one[0] < other[0])

    found = []
    for library in (ctypes.CDLL(None), ctypes.PyDLL(None)):  # the second one keeps the interpreter's lock
        numbers = (ctypes.c_int * 100)(*[number * 7919 % 101 for number in range(100)])
        library.qsort(numbers, 100, ctypes.sizeof(ctypes.c_int), kind(compare))
        found.append(list(numbers))
    for _ in range(ROUNDS // 10):
        found.append(sorted(range(50), key=lambda number: number * 7919 % 101 + _work(5)))
        found.append([functools.reduce(lambda one, other: one + other + _work(3), range(50))])
    return found


def _traced(install: Callable[[Any], None], calls_only: bool) -> Any:
    seen: list[tuple[str, str, int]] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        name = frame.f_code.co_name
        if frame.f_code.co_filename == __file__ and name != "_traced":
            seen.append((name, event, frame.f_lineno))
        return None if calls_only else trace

    install(trace)
    try:
        for number in range(ROUNDS // 10):
            _work(number)
    finally:
        install(None)
    return seen


def under_a_tracer() -> Any:
    return _traced(sys.settrace, False)


def under_a_profiler() -> Any:
    return _traced(sys.setprofile, True)


def in_threads_that_spin() -> Any:
    told: queue.Queue[int] = queue.Queue(2)

    def makes() -> None:
        for number in range(ROUNDS):
            told.put(number + _work(100))

    threads = [threading.Thread(target=makes) for _ in range(3)]
    for thread in threads:
        thread.start()
    total = sum(told.get() + _work(20) for _ in range(3 * ROUNDS))
    for thread in threads:
        thread.join()
    return total


def in_numpy() -> Any:
    import numpy as np

    function = np.frompyfunc(lambda one, other: one * other + _work(5), 2, 1)
    vectors = np.arange(ROUNDS)
    swapped = np.vectorize(lambda one: one + _work(5))(vectors)
    with np.errstate(divide="raise"):
        try:
            np.ones(3) / np.zeros(3)
        except FloatingPointError as error:
            told = str(error)
    return function(vectors, vectors[::-1]).tolist(), swapped.tolist(), told


def in_backward() -> Any:
    import torch

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            _work(20)
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            _work(20)
            return gradient * 2

    torch.manual_seed(0)
    weight = torch.randn(8, 8, requires_grad=True)
    calls = [0]

    def hook(gradient: Any) -> Any:
        calls[0] += 1
        _work(20)
        return gradient + 1

    weight.register_hook(hook)
    for _ in range(ROUNDS // 3):
        Doubled.apply(weight @ weight).tanh().sum().backward()
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
            weight.grad = None
    failed = 0
    for _ in range(ROUNDS // 10):
        try:
            value = (weight * 2).sum()
            value.register_hook(lambda gradient: 1 // 0)
            value.backward()
        except ZeroDivisionError:
            failed += 1
    return weight.double().sum().item().hex(), calls, failed


PLACES = (
    in_asyncio,
    in_generators,
    in_del,
    in_exceptions,
    in_signal_handlers,
    in_an_interrupt,
    in_callbacks_of_c,
    under_a_tracer,
    under_a_profiler,
    in_threads_that_spin,
)
PLACES_OF_TORCH = (in_numpy, in_backward)
