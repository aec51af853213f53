"""Reads what ``python -m torch.utils.collect_env``, and vLLM's program of that name, print of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NCCL = re.compile(r"^[ \t>]{0,20}\[(?:pip3?|conda)\] nvidia-nccl-(cu\d{1,3})(?:==| +)([\d.]{1,20})", re.M)
_VARIABLES = re.compile(r"^vLLM Build Flags", re.M)
_SET = re.compile(r"^([A-Z][A-Z0-9_]{2,60})=(.*)$", re.M)
_MOST, _MOST_VALUE = 200_000, 4000
_UNKNOWN = ("", "n/a", "none", "could not collect", "no cuda")


@dataclass(frozen=True)
class TorchEnvironment:
    """None for what is not told. cuda and hip: what torch was built for. sees_gpus: as torch says itself.

    wheels: of NCCL, by CUDA (``cu13``). variables: what is set, of the families that vLLM prints.
    """

    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    driver: str | None = None
    sees_gpus: bool | None = None
    wheels: tuple[tuple[str, str], ...] = ()
    variables: Mapping[str, str] | None = field(default=None, hash=False)


def parse_environment(text: str) -> TorchEnvironment | None:
    """The last one of a text; None where there is none."""
    at = text.rfind("CUDA used to build PyTorch")
    if at < 0:
        return None
    begin = text.rfind("PyTorch version", 0, at)
    text = text[max(begin, 0) :][:_MOST]
    told: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())

    def known(name: str) -> str | None:
        value = told.get(name, "")
        return None if value.lower() in _UNKNOWN else value

    return TorchEnvironment(
        known("PyTorch version"),
        known("CUDA used to build PyTorch"),
        known("ROCM used to build PyTorch"),
        known("Nvidia driver version"),
        {"true": True, "yes": True, "false": False, "no": False}.get(told.get("Is CUDA available", "").lower()),
        tuple(sorted(set(_NCCL.findall(text)))),
        _variables(text),
    )


def _variables(text: str) -> dict[str, str] | None:
    """What vLLM prints at the end; None without it."""
    begin = _VARIABLES.search(text)
    found = {name: value[:_MOST_VALUE].strip() for name, value in _SET.findall(text, begin.end())} if begin else {}
    return found or None
