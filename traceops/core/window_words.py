"""What is said of a step, said of a window: where nothing tells where steps begin, times are of the whole window."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

# In this order; every sentence about time has one of these forms. What names steps in general ('no steps', 'steps 3
# to 5') has none of them.
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"\bDevice time of one step: the mean over the rank's typical steps,", "Device time of the window,"),
        (r"\bthe means and the worst step\b", "the numbers"),
        (r"\bSteps take ([\d.]+ times as long) as they would\b", r"The window takes \1 as it would"),
        (r"\bof each ([\d.,\s]+ ms) step\b", r"of the window of \1"),
        (r"\b(of|in) (each|a) step\b", r"\1 the window"),
        (r"\bms(?: a step)? \(mean over steps\)", "ms in the window"),
        (r"\b(W|w)here a step goes\b", r"\1here the window goes"),
        (r"\b(such )?a step (would take|takes|has|leaves)\b", r"the window \2"),
        (r"\ba step without\b", "the window without"),
        (r" a step\b", " in the window"),
        (r", a step,", ", in the window,"),
        (r"\bSteps take\b", "The window takes"),
        (r"\bThe measured steps\b", "The measured window"),
        (r"\bthe measured steps\b", "the measured window"),
        (r"\breplay of step\b", "replay of the window"),
        (r"\bper step\b", "in the window"),
        (r"\b(ms|calls|MB|GB)/step\b", r"\1"),
        (r"% of step\b", "% of window"),
        (r"\b(Typical|Longest) step\b", "Window"),
        (r"\b(the|The) (median|longest|typical) step\b", r"\1 window"),
        (r"\b(the|The|one|each|that|rank's) step\b", r"\1 window"),
        (r"\b(rank \d+'s) step\b", r"\1 window"),
        (r"\bstep ledger\b", "ledger of the window"),
        (r"\bStep ledger\b", "Ledger of the window"),
        (r"^a step, ", "in the window, "),
        (r"\bworst step\b", "window"),
        (r"\bWorst step\b", "Window's"),
        (r"\bone window; on the table the median over the rank's steps\b", "the window"),
        (r"\bof the mean over typical steps\b", "of the window"),
        (r"\bover (all )?ranks and steps\b", r"over \1ranks"),
        (r"^Step ms$", "Window ms"),
        (r"^step ms$", "window ms"),
    )
)
_SKIPPED = frozenset({"key", "rule", "id", "advice", "titles", "terms", "css", "data", "href"})


def of_window(said: str) -> str:
    """The sentence with a window where it speaks of a step."""
    if "step" not in said and "Step" not in said:
        return said
    for pattern, window in _FORMS:
        said = pattern.sub(window, said)
    return said


def words_of_window(value: T, kept: Sequence[type] = ()) -> T:
    """The same with every text in it so, but for what is of a `kept` type, and for advice, keys and names of rules."""
    return cast(T, _mapped(value, tuple(kept)))


def _mapped(value: Any, kept: tuple[type, ...]) -> Any:
    if isinstance(value, str):
        return of_window(value)
    if isinstance(value, kept):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **_fields(value, value.__struct_fields__, kept))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **_fields(value, names, kept))
    if isinstance(value, dict):
        return {key: item if key in _SKIPPED else _mapped(item, kept) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, kept) for item in value)
    return value


def _fields(value: Any, names: Sequence[str], kept: tuple[type, ...]) -> dict[str, Any]:
    return {name: _mapped(getattr(value, name), kept) for name in names if name not in _SKIPPED}
