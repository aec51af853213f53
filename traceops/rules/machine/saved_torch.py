"""Judges what collect_env says of torch: whether it fits the driver, its NCCL, and the variables that are set."""

from __future__ import annotations

from dataclasses import replace

from traceops.machine.host_context import HostContext
from traceops.machine.look import Look
from traceops.machine.software import Software
from traceops.machine.torch_environment import TorchEnvironment
from traceops.machine.variable import version_of
from traceops.rules.machine.software import NCCL, TORCH, judge_software
from traceops.rules.machine.variables import check_variables

# The oldest driver for Linux that runs programs of a CUDA: from 11 on by major version (CUDA Compatibility, "Minor
# Version Compatibility", table 1), before by version (CUDA Toolkit Release Notes, toolkit driver versions).
_OLDEST_DRIVER = {
    (13,): "580", (12,): "525", (11,): "450", (10, 2): "440.33", (10, 1): "418.39", (10, 0): "410.48",
}  # fmt: skip
_NO_CAUSE = "torch finds no GPU, and these files do not tell why"


def judge_environment(told: TorchEnvironment, gpus: int, host: str) -> list[Look]:
    """gpus: how many the host has, 0 where that is not known."""
    software = Software("", told.torch, told.cuda, told.hip, told.wheels)
    found = judge_software(software, None, gpus, host)
    looks = [look for look in found if look.rule != TORCH.id]
    if told.torch is not None:
        looks += [_torch(look, told, gpus, host) for look in found if look.rule == TORCH.id]
    if not told.wheels:
        why = "these files do not tell which NCCL torch has"
        looks.append(Look(host, "software", "NCCL", "not known", "not_evaluated", why, rule=NCCL.id))
    if told.variables is not None:
        context = HostContext(gpus=gpus or None, nccl=software.nccl, torch=told.torch)
        looks += check_variables(told.variables, host, context)
    return looks


def _torch(look: Look, told: TorchEnvironment, gpus: int, host: str) -> Look:
    """Of a torch built for CUDA: it fits where it sees GPUs itself, else the driver may be too old for it."""
    if look.level != "ok" or told.cuda is None or told.sees_gpus:
        return look
    oldest = _oldest_driver(told.cuda)
    if told.driver and oldest and version_of(told.driver)[:2] < version_of(oldest):
        return replace(
            look, level="error", why=f"driver {told.driver} is too old for it: torch sees no GPU",
            advice=f"update the driver to {oldest} or newer, or install torch built for an older CUDA: see "
            "'Get started' of pytorch.org",
        )  # fmt: skip
    why = _NO_CAUSE if gpus and told.sees_gpus is False else "these files do not tell whether torch finds GPUs"
    return replace(look, level="not_evaluated", why=why)


def _oldest_driver(cuda: str) -> str | None:
    version = version_of(cuda)
    return _OLDEST_DRIVER.get(version[:1]) or _OLDEST_DRIVER.get(version[:2])
