"""What a message says is not finite: the loss, gradients or their norm, and whether it is NaN, inf, or one of both."""

from __future__ import annotations

import re

# 'Loss is nan', 'grad_norm: inf', 'non-finite loss', 'found NaN in local grad norm'; a loss scale is no loss.
_VALUE = r"(?<!\w)(?:nan|inf|infinite|infinity|not finite|non-?finite)\b"
_WHAT = r"(?<![A-Za-z])(?:loss(?:es)?(?![ _-]?scal)|grad(?:ient)?s?(?:[ _]norms?)?)(?![A-Za-z_])"
# How programs word it that end themselves because of it: the words are any program's own.
_SAID = re.compile(rf"(?P<of>{_WHAT})[^.\n]{{0,40}}{_VALUE}|{_VALUE}[^.\n]{{0,40}}(?P<to>{_WHAT})", re.IGNORECASE)
_NAN = re.compile(r"(?<!\w)nan\b", re.IGNORECASE)
_INF = re.compile(r"(?<!\w)inf(?:inite|inity)?\b", re.IGNORECASE)
_NORM = re.compile(r"(?<![A-Za-z])norms?\b", re.IGNORECASE)
_BEHIND = 60  # characters: 'non-finite loss, ending training tensor([nan, nan], …'
_AHEAD = 40  # 'The total norm of order 2.0 for gradients from `parameters` is non-finite'


def says_not_finite(text: str) -> bool:
    """Whether a message says so of the loss or of gradients."""
    return _SAID.search(text) is not None


def what_is_not_finite(text: str) -> str:
    """'the loss is NaN', 'gradients are inf', 'the loss is not finite (inf or NaN)': no more than the message says."""
    said = _SAID.search(text)
    if said is None:
        return "a value is not finite (inf or NaN)"
    value = _value(said[0]) or _value(text[said.start() : said.end() + _BEHIND]) or "not finite (inf or NaN)"
    if (said["of"] or said["to"]).lower().startswith("loss"):
        return f"the loss is {value}"
    of_norm = _NORM.search(text, max(0, said.start() - _AHEAD), said.end()) is not None
    return f"the norm of gradients is {value}" if of_norm else f"gradients are {value}"


def _value(told: str) -> str | None:
    """Which of both; None where neither is told, or both are."""
    nan, inf = _NAN.search(told) is not None, _INF.search(told) is not None
    return None if nan == inf else "NaN" if nan else "inf"
