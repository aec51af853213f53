"""Writes down what fake tensors would allocate, op by op."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traceops.memory.allocator import Allocation, Category, Event, TrainingPhase

_BY_PHASE = {
    TrainingPhase.FORWARD: Category.ACTIVATIONS,
    TrainingPhase.BACKWARD: Category.BACKWARD,
    TrainingPhase.OPTIMIZER: Category.OPTIMIZER,
}
_CASTS = (torch.ops.aten._to_copy.default,)
_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default)
_FLASH_BACKWARD = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
    _ATEN._scaled_dot_product_flash_attention_backward.default,
)
_DOUBTS = (_ATEN.isnan.default, _ATEN.isinf.default)
_OF_DOUBTS = (_ATEN.any.default, _ATEN.any.dim, _ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN._to_copy.default)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, `events` gets each new storage and each one that is gone.

    Push it after the FakeTensorMode. `workspaces` are the bytes that matrix products take for themselves: "cublas" for
    each thread, "cublaslt" once. What a storage is for is guessed from where it was made, and may be said better later
    with `label`: the storages of gradients and optimizer state are known once they are there. `device`: only what is
    on a device of that type is written down; None where all is taken to be on the GPU. `before_steps`: for what is
    made there; the built-in strategies make their buffers.
    """

    def __init__(
        self, workspaces: Mapping[str, int], device: str | None = None, before_steps: Category = Category.SHARDING
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.workspaces = workspaces
        self.device = device
        self.events: list[Event] = []
        self.phase = TrainingPhase.SETUP
        self.before_steps = before_steps
        self.step = 0
        self.optimizers = 0  # that are in their step
        self.communicating = 0
        self.paused = 0
        self.values_read = 0  # by .item() and the like; a fake tensor has none, so each is answered with 1
        self._of: dict[int, tuple[Any, Allocation]] = {}
        self._modules: list[str] = []
        self._parameters: set[int] = set()
        self._resize: Any = None
        self._entered = 0  # once a thread
        self._libraries: set[tuple[TrainingPhase, str]] = set()
        self.stream = 0
        self._buckets: list[Allocation] = []
        self._doubts: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self.held = 0  # bytes that storages hold now

    def __enter__(self) -> Tracker:
        self._entered += 1
        if self._entered == 1:
            resize = self._resize = torch.UntypedStorage.resize_

            def watched(storage: torch.UntypedStorage, size: int) -> Any:
                result = resize(storage, size)
                self._resized(storage)
                return result

            torch.UntypedStorage.resize_ = watched  # type: ignore[method-assign, assignment]  # no op: no mode sees it
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered -= 1
        if not self._entered:
            torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch comes back here with the local tensors
        try:
            result = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            self.values_read += 1
            tensor = args[0]
            if id(tensor.untyped_storage()) in self._doubts:
                return 0
            return True if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1
        if self.paused:
            return result
        seen = False
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self.device in (None, tensor.device.type):
                seen = True
                self._see(tensor, func, args)
        if seen:
            self._libraries_of(func, args)
        if func in _DOUBTS or (self._doubts and func in _OF_DOUBTS and id(args[0].untyped_storage()) in self._doubts):
            self._doubts[id(result.untyped_storage())] = result  # nothing is NaN or infinite
        return result

    def _libraries_of(self, func: Any, args: Any) -> None:
        """What the kernels of `func` allocate on a GPU beside their results."""
        if func in _PRODUCTS:
            for key, size in self.workspaces.items():
                at = (self.phase if key == "cublas" else TrainingPhase.SETUP, key)
                if at not in self._libraries and self.phase in (TrainingPhase.FORWARD, TrainingPhase.BACKWARD):
                    self._libraries.add(at)  # cuBLAS has one for each host thread, and backward has its own
                    self.take(size, Category.WORKSPACE, key)
        elif func in _FLASH_BACKWARD and args[1].dtype in (torch.bfloat16, torch.float16):
            self.give_back(self.take(4 * args[1].numel(), Category.BACKWARD, str(func)))  # dQ is summed in float32

    def _see(self, tensor: Tensor, func: Any, args: Any) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._of:
            return
        category = _BY_PHASE.get(self.phase, self.before_steps)
        if self.communicating:
            category = Category.SHARDING
        elif func in _CASTS and isinstance(args[0], Tensor) and id(args[0].untyped_storage()) in self._parameters:
            category = Category.CASTS
        module = self._modules[-1] if self._modules else ""
        if category is Category.ACTIVATIONS and not module:
            category = Category.LOSS
        self._add(
            storage, Allocation(storage.nbytes(), category, module, self.phase, self.step, str(func), self.stream)
        )

    def _add(self, storage: Any, allocation: Allocation) -> None:
        key = id(storage)

        def gone(_: Any) -> None:
            _, last = self._of.pop(key)
            self.held -= last.size
            if last.size:
                self.events.append((last, False))

        self.held += allocation.size
        self._of[key] = (weakref.ref(storage, gone), allocation)
        if allocation.size:
            self.events.append((allocation, True))

    def _resized(self, storage: Any) -> None:
        if (known := self._of.get(id(storage))) is None:
            return
        reference, before = known
        if before.size:
            self.events.append((before, False))
        after = Allocation(
            storage.nbytes(), Category.SHARDING if self.communicating or not before.size else before.category,
            before.module, self.phase, self.step, "resize_", self.stream,
        )  # fmt: skip
        self.held += after.size - before.size
        self._of[id(storage)] = (reference, after)
        if after.size:
            self.events.append((after, True))

    def begin_steps(self) -> None:
        """What follows is the first forward."""
        self.phase, self.step = TrainingPhase.FORWARD, 1

    def end_step(self) -> None:
        """What follows is the next step's forward."""
        self.phase, self.step = TrainingPhase.FORWARD, self.step + 1

    def label(self, tensors: Iterable[Tensor | None], category: Category) -> None:
        """Say what the storages of `tensors` are for."""
        for tensor in tensors:
            if tensor is None:
                continue
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if (known := self._of.get(id(local.untyped_storage()))) is not None:
                known[1].category = category
                if category is Category.PARAMETERS:
                    self._parameters.add(id(local.untyped_storage()))

    def take(self, size: int, category: Category, op: str) -> Allocation:
        """Something that a library allocates on its own; give it to `give_back`."""
        module = self._modules[-1] if self._modules else ""
        allocation = Allocation(size, category, module, self.phase, self.step, op, self.stream)
        self.events.append((allocation, True))
        return allocation

    def give_back(self, allocation: Allocation) -> None:
        self.events.append((allocation, False))

    @contextmanager
    def as_buckets(self) -> Iterator[None]:
        """What is allocated inside and stays are the buckets of DDP."""
        begin = len(self.events)
        yield
        gone = {id(made) for made, new in self.events[begin:] if not new}
        self._buckets = [made for made, new in self.events[begin:] if new and made.size and id(made) not in gone]
        for bucket in self._buckets:
            bucket.category = Category.GRADIENTS

    def replace_buckets(self, sizes: Iterable[int]) -> None:
        """Free the buckets and make others of these sizes.

        The old storages stay in use here, as the views of the gradients are; only the events say what a GPU would do.
        """
        for bucket in self._buckets:
            bucket.lingers = True
            self.events.append((bucket, False))
        for size in sizes:
            self.take(size, Category.GRADIENTS, "rebuild_buckets")
        replaced = {id(bucket) for bucket in self._buckets}
        for key, (_, allocation) in list(self._of.items()):
            if id(allocation) in replaced:
                self._of[key] = (None, Allocation(0, Category.GRADIENTS, "", self.phase, self.step, ""))

    @contextmanager
    def communication(self) -> Iterator[None]:
        """What is allocated inside belongs to sharding."""
        self.communicating += 1
        try:
            yield
        finally:
            self.communicating -= 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is allocated inside is not there on a GPU."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def enter_module(self, name: str) -> None:
        """What follows is made by the module of that name."""
        self._modules.append(name)

    def leave_module(self, name: str) -> None:
        """It is over, and what it called and was left early."""
        while self._modules and self._modules.pop() != name:
            pass

    def follow(self, root: nn.Module) -> None:
        """Name allocations in forward after the modules of `root`."""
        for name, module in root.named_modules():
            if not name:
                continue

            def enter(_: nn.Module, args: Any, name: str = name) -> None:
                self.enter_module(name)

            def leave(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
                self.leave_module(name)

            module.register_forward_pre_hook(enter, prepend=True)
            module.register_forward_hook(leave, always_call=True)  # a checkpoint's second forward stops early
