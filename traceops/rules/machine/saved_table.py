"""Judges nvidia-smi's table and nvidia-smi -L: they tell less than nvidia-smi -q, and what they lack is not sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.machine.look import Look
from traceops.machine.smi import Smi, SmiGpu
from traceops.machine.smi_list import ListedGpu
from traceops.machine.smi_table import CUT, SmiTable
from traceops.rules.machine.gpu_health import CLOCKS, MEMORY
from traceops.rules.machine.gpus import COMPUTE_MODE, ECC_OFF, MIG, OTHERS, PERSISTENCE, UNLIKE_GPUS, judge_gpus
from traceops.rules.machine.platform import DRIVER

_WHOLE = (COMPUTE_MODE, MIG, ECC_OFF, UNLIKE_GPUS, DRIVER)  # what a table tells all of
_OF_PARTS = (MEMORY.id, CLOCKS.id, COMPUTE_MODE.id)
_NAMES_CUT = "nvidia-smi cut their names off: save nvidia-smi -L too"


def judge_table(table: SmiTable, listed: Sequence[ListedGpu], host: str) -> tuple[list[Look], set[str]]:
    """What a table says of the GPUs, and the rules that it decides. listed: by nvidia-smi -L, with whole names."""
    smi = replace(table.smi, gpus=_with_names(table.smi.gpus, listed))
    told = {rule.id for rule in _WHOLE}
    if all(gpu.persistence is not None for gpu in smi.gpus):
        told.add(PERSISTENCE.id)
    found = [look for look in judge_gpus(smi, host) if look.rule != OTHERS.id]
    looks = [look for look in found if look.rule in told or look.level not in ("ok", "not_evaluated")]
    if len(smi.gpus) > 1 and any(CUT in gpu.name for gpu in smi.gpus):
        looks = [_uncertain(look) for look in looks]
    return looks, told | {look.rule for look in looks}


def judge_parts(gpus: Sequence[SmiGpu], host: str) -> tuple[list[Look], set[str]]:
    """What is wrong with GPUs of which a part is told, by rules that need no other part, nor their models."""
    found = judge_gpus(Smi(None, None, tuple(gpus)), host)
    looks = [look for look in found if look.rule in _OF_PARTS and look.level in ("warning", "error")]
    return looks, {look.rule for look in looks}


def judge_list(listed: Sequence[ListedGpu], host: str) -> tuple[list[Look], set[str]]:
    """What nvidia-smi -L says of the GPUs, and the rules that it decides: their models, and slices that there are."""
    gpus = tuple(SmiGpu(gpu.index, gpu.name, gpu.uuid, mig=gpu.mig) for gpu in listed)
    told = {UNLIKE_GPUS.id} | ({MIG.id} if any(gpu.mig for gpu in listed) else set())
    return [look for look in judge_gpus(Smi(None, None, gpus), host) if look.rule in told], told


def _with_names(gpus: Sequence[SmiGpu], listed: Sequence[ListedGpu]) -> tuple[SmiGpu, ...]:
    """The GPUs with whole names, where the list is of the same ones."""
    names = {gpu.index: gpu.name for gpu in listed}
    same = len(gpus) == len(names) and all(_fits(gpu.name, names.get(gpu.index, "")) for gpu in gpus)
    return tuple(replace(gpu, name=names[gpu.index]) for gpu in gpus) if same else tuple(gpus)


def _fits(name: str, whole: str) -> bool:
    return whole.startswith(name.partition(CUT)[0].rstrip()) if CUT in name else name == whole


def _uncertain(look: Look) -> Look:
    """GPUs whose names are alike as far as they are shown may be of two models."""
    if look.rule != UNLIKE_GPUS.id or look.level != "ok":
        return look
    return replace(look, level="not_evaluated", why=_NAMES_CUT)
