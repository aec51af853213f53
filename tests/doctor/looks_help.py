"""What the tests of the doctor's looks share: a machine of files, and GPUs as nvidia-smi prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from traceops.machine.look import Look
from traceops.rules.machine.judge import RULES

_RULES = {rule.id for rule in RULES}
DATA = Path(__file__).parent.parent / "data" / "doctor"
HEALTHY = (DATA / "h200x4_smi.xml").read_text()


def put(root: Path, files: Mapping[str, str]) -> Path:
    """A root with these files; a name that ends in / is a folder."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def smi(*changes: tuple[str, str], gpu: int = 1) -> str:
    """The XML of 4 H200 with some text of one GPU replaced."""
    pieces = HEALTHY.split("<gpu id=")
    for old, new in changes:
        assert old in pieces[gpu + 1]
        pieces[gpu + 1] = pieces[gpu + 1].replace(old, new)
    return "<gpu id=".join(pieces)


def wrong(looks: Iterable[Look]) -> dict[str, str]:
    """Level by what, of everything that is not ok; each of them has advice and names its rule."""
    looks = tuple(looks)
    found = {look.what: look.level for look in looks if look.level not in ("ok", "not_evaluated")}
    assert all(look.advice for look in looks if look.level in ("note", "warning", "error"))
    assert all(look.rule in _RULES for look in looks if look.level in ("note", "warning", "error"))
    assert all(look.why for look in looks if look.level == "not_evaluated")
    assert json.loads(json.dumps([look.facts for look in looks])) is not None
    return found


def one(looks: Iterable[Look], what: str) -> Look:
    """The only Look on this."""
    (found,) = (look for look in looks if look.what == what)
    return found
