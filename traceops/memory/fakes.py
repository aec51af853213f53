"""What has to be put in place of torch's own so that a training runs on fake tensors and a fake process group.

Each of them reads values that a fake tensor does not have, or waits for a device. None changes what is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # gives c10d's operators fake kernels
from torch import Tensor, nn
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import distributed as ddp
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from traceops.memory.allocator import Category, TrainingPhase
from traceops.memory.fake_tensors import GpuMode, is_fake, with_values, within
from traceops.memory.tracker import Tracker

_OF_MESHES = ("__init__", "__getitem__", "_flatten", "get_local_rank", "get_coordinate", "get_group")
_SHAPES = "_propagate_tensor_meta_non_cached"
_OF_SHARDING = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward", "reshard")


@contextmanager
def faked(
    tracker: Tracker, gpu: GpuMode | None = None, ended: Callable[[torch.optim.Optimizer], None] | None = None
) -> Iterator[None]:
    """While it is open, torch's parallelism runs under `tracker` as it does on a GPU. Without `gpu` the tensors of the
    GPU are on a fake CPU; with it they are on its fake GPU. ended: called after the outermost step of an optimizer;
    without it that ends a training step."""

    backward: Callable[..., None] = torch.autograd.backward

    def in_backward(*args: Any, **kwargs: Any) -> None:
        before, tracker.phase = tracker.phase, TrainingPhase.BACKWARD
        try:
            with gpu.everything_on_gpu() if gpu is not None else nullcontext():
                backward(*args, **kwargs)
        finally:
            tracker.phase = before

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        tracker.optimizers += 1  # ZeroRedundancyOptimizer has another inside
        tracker.phase = TrainingPhase.OPTIMIZER
        tracker.label(parameters_of(optimizer), Category.PARAMETERS)
        tracker.label([p.grad for p in parameters_of(optimizer)], Category.GRADIENTS)

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        values = [value for state in optimizer.state.values() for value in state.values()]
        tracker.label([value for value in values if isinstance(value, Tensor)], Category.OPTIMIZER_STATE)
        tracker.optimizers -= 1
        if not tracker.optimizers and ended is not None:
            ended(optimizer)
        elif not tracker.optimizers:
            tracker.end_step()

    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(owner, name, value))

        put(nn.Module, "_apply", _applying(_replacing() if gpu is None else _moved))
        if gpu is not None:
            put(Tensor, "record_stream", lambda *_: None)  # also called where no mode sees it, in hooks of backward
            put(nn.Module, "register_parameter", _registered(nn.Module.register_parameter, gpu))
        for name in _OF_MESHES:
            put(DeviceMesh, name, with_values(getattr(DeviceMesh, name)))
        put(device_mesh, "init_device_mesh", with_values(device_mesh.init_device_mesh))
        put(dist, "init_device_mesh", device_mesh.init_device_mesh)
        put(ddp, "_verify_param_shape_across_processes", lambda *_, **__: None)
        put(ddp.DistributedDataParallel, "__init__", _reducing(ddp.DistributedDataParallel.__init__, tracker, gpu))
        for name in _OF_SHARDING:
            put(fsdp.FSDPParamGroup, name, within(tracker.communication, getattr(fsdp.FSDPParamGroup, name)))
        # DTensor tries each operator on a whole tensor, fake too, to learn the shape of its result.
        put(ShardingPropagator, _SHAPES, within(tracker.pause, getattr(ShardingPropagator, _SHAPES)))
        # On a GPU, optimizers go through all parameters at once, which takes memory; on the CPU they do not.
        for owner in (optimizers, _foreach_utils):
            put(owner, "_get_foreach_kernels_supported_devices", lambda: ["cuda" if gpu else "cpu"])
        put(optimizers, "_foreach_supported_types", [*optimizers._foreach_supported_types, FakeTensor])
        if gpu is None:
            put(torch.cpu, "stream", lambda stream: _on_stream(tracker, stream))
        else:
            put(_foreach_utils, "_foreach_supported_types", [*_foreach_utils._foreach_supported_types, FakeTensor])
            grouped = _by_device(_foreach_utils._group_tensors_by_device_and_dtype)
            for owner in (optimizers, _foreach_utils, clip_grad):
                put(owner, "_group_tensors_by_device_and_dtype", grouped)
        put(torch.autograd, "backward", in_backward)
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        stack.callback(register_optimizer_step_post_hook(after_step).remove)
        put(torch.amp.GradScaler, "_maybe_opt_step", lambda _, optimizer, *__, **___: optimizer.step())
        yield


_Change = Callable[[torch.Tensor], torch.Tensor]


def _applying(to: Callable[[nn.Module, str, nn.Parameter, _Change], None]) -> Callable[..., nn.Module]:
    """nn.Module._apply, which would swap a fake tensor's insides with another's; `to` changes one parameter."""

    def call(module: nn.Module, change: _Change, recurse: bool = True) -> nn.Module:
        if recurse:
            for child in module.children():
                child._apply(change)  # type: ignore[no-untyped-call]
        for name, tensor in module._parameters.items():
            if tensor is not None:
                to(module, name, tensor, change)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
        return module

    return call


def _replacing() -> Callable[[nn.Module, str, nn.Parameter, _Change], None]:
    """A parameter of its own for what is changed, and one for those that are tied."""
    made: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def to(module: nn.Module, name: str, tensor: nn.Parameter, change: _Change) -> None:
        known = made.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            with torch.no_grad():
                changed = change(tensor)
            if changed is tensor or (changed.dtype, changed.device) == (tensor.dtype, tensor.device):
                return
            known = made[tensor] = nn.Parameter(changed, tensor.requires_grad)
        module._parameters[name] = known

    return to


def _moved(module: nn.Module, name: str, tensor: nn.Parameter, change: _Change) -> None:
    """Parameters that are tied or that an optimizer has stay the same objects."""
    with torch.no_grad():
        changed = change(tensor)
        gradient = None if tensor.grad is None else change(tensor.grad)
    if (changed.dtype, changed.device) == (tensor.dtype, tensor.device):
        return
    if isinstance(tensor, FakeTensor) and isinstance(changed, FakeTensor):
        tensor.grad = None
        tensor.data = changed
        tensor.grad = gradient
    else:
        module._parameters[name] = nn.Parameter(changed, tensor.requires_grad)


def _registered(register: Callable[..., None], gpu: GpuMode) -> Callable[..., None]:
    """nn.Module.register_parameter, which makes small parameters of the CPU fake, as large ones are."""

    def call(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not is_fake(parameter):
            fake = gpu.from_tensor(parameter.detach())
            parameter = nn.Parameter(fake, parameter.requires_grad)
        register(module, name, parameter)

    return call


def _by_device(group: Callable[..., Any]) -> Callable[..., Any]:
    """torch's grouping of tensors, which asks C++ for their device, with the device that Python sees."""

    def call(tensors: Any, with_indices: bool = False) -> Any:
        groups: dict[Any, Any] = {}
        for (device, dtype), found in group(tensors, with_indices).items():
            first = next((one for one in found[0][0] if one is not None), None)
            groups[device if first is None else first.device, dtype] = found
        return groups

    return call


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What the optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


@contextmanager
def _on_stream(tracker: Tracker, stream: Any) -> Iterator[None]:
    before, tracker.stream = tracker.stream, id(stream) if stream is not None else tracker.stream
    try:
        yield
    finally:
        tracker.stream = before


class _Reducer:
    """DDP's reducer, which makes its buckets anew before the second forward, in the order gradients came."""

    def __init__(self, reducer: Any, tracker: Tracker, module: ddp.DistributedDataParallel) -> None:
        self._reducer, self._tracker, self._module = reducer, tracker, module
        self._rebuilt = module.find_unused_parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        if self._tracker.step > 1 and not self._rebuilt:
            self._rebuilt = True
            parameters = [p for p in self._module.module.parameters() if p.requires_grad][::-1]
            limits = [c10d._DEFAULT_FIRST_BUCKET_BYTES, self._module.bucket_bytes_cap]
            with _disable_current_modes():
                buckets = c10d._compute_bucket_assignment_by_size(
                    [torch.empty(p.shape, dtype=p.dtype, device="meta") for p in parameters], limits
                )[0]
            sizes = [sum(parameters[at].numel() * parameters[at].element_size() for at in one) for one in buckets]
            self._tracker.replace_buckets(sizes)
        return False


def _reducing(initialize: Callable[..., None], tracker: Tracker, gpu: GpuMode | None) -> Callable[..., None]:
    def init(self: ddp.DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        with tracker.as_buckets(), gpu.everything_on_gpu() if gpu is not None else nullcontext():
            initialize(self, *args, **kwargs)
        self.register_comm_hook(None, _average)
        self.reducer = _Reducer(self.reducer, tracker, self)  # type: ignore[assignment]

    return init


def _average(_: object, bucket: c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's own hook waits for a result that the fake process group does not give."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_average.__annotations__.clear()  # torch compares them with its own types, and ours are text
