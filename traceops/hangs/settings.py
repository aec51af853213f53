"""In which setting a job runs (Ray, vLLM, Slurm, …), by what its log has: advice of another one is of no use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from traceops.hangs.readers.whole_lines import edge_blocks
from traceops.traces.text_lines import words_in


class _Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    setting: str
    signs: tuple[str, ...]
    bring: str


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    settings: tuple[_Setting, ...]
    default: str


@lru_cache(maxsize=1)
def _settings() -> _Settings:
    return msgspec.json.decode(Path(__file__).with_name("settings.json").read_bytes(), type=_Settings)


def setting_of(texts: Iterable[Path]) -> str | None:
    """The first setting of which a text has a sign; None without any. Raises InputError where one cannot be read."""
    known = _settings().settings
    signs = [sign.encode() for one in known for sign in one.signs]
    seen = {word for text in texts for _, block in edge_blocks(str(text)) for word in words_in(block, signs)}
    return next((one.setting for one in known if any(sign.encode() in seen for sign in one.signs)), None)


def how_to_bring(setting: str | None) -> str:
    """How to get each rank's own output there, as the middle of a sentence."""
    known = _settings()
    return next((one.bring for one in known.settings if one.setting == setting), known.default)
