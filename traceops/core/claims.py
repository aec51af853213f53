"""Claims: which of the known kinds holds, with typed facts. words/<family>.ini has the sentences of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from string import Formatter
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from traceops.core import units
from traceops.core.findings import Finding
from traceops.core.rank_text import ranks_text, who, who_first
from traceops.core.text import short_name
from traceops.core.words import ROLES, STEP, WINDOW
from traceops.words.catalogue import sections


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge says holds. A subclass is a kind: its fields are the facts, its words a section of a file. family:
    the file of words, which a common base of its claims names. kind: the section, the class's name in small letters
    unless it names another. window: times are of the recorded window, because nothing tells where steps begin."""

    family: ClassVar[str]
    kind: ClassVar[str]
    window: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "family") and not {"family", "kind"} & vars(cls).keys():
            cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def sentences(self, part: str) -> list[str]:
        """The sentences of a part of its section of which every fact is known."""
        return list(_sentences(self, part))

    def headline(self) -> str:
        """The first of its headlines of which every fact is known."""
        return self.sentences("headline")[0]

    def message(self) -> str:
        """The headline and what stands behind it, in sentences."""
        return " ".join([f"{self.headline()}.", *self.sentences("why")])

    def facts(self) -> dict[str, Any]:
        """The facts that are known, as report.json holds them."""
        known = msgspec.to_builtins(self, enc_hook=_number)
        return {name: _as_read(value) for name, value in known.items() if not _is_empty(value)}

    def part(self, name: str) -> str:
        """A part that is one sentence."""
        return " ".join(self.sentences(name))


def _as_read(value: Any) -> Any:
    """A value as it comes back from a file: lists in place of tuples."""
    if isinstance(value, dict):
        return {name: _as_read(one) for name, one in value.items()}
    return [_as_read(one) for one in value] if isinstance(value, (list, tuple)) else value


def _number(value: Any) -> Any:
    """A number of NumPy's as Python's own. Raises TypeError for anything else."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no fact of a claim")


C = TypeVar("C", bound=Claim)


def claim_of(finding: Finding, kind: type[C]) -> C | None:
    """The claim that a finding makes, where it is one of this kind."""
    known = finding.kind == kind.kind and finding.facts is not UNSET
    return msgspec.convert(finding.facts, kind) if known else None


def restated(finding: Finding, kind: type[C], **facts: Any) -> Finding:
    """The finding with more facts of its claim, of this kind, and the words that they make."""
    claim = msgspec.structs.replace(msgspec.convert(finding.facts, kind), **facts)
    return replace(finding, message=claim.message(), headline=claim.headline(), facts=claim.facts())


class Facts(SimpleNamespace):
    """Facts that are no claim's, as a template reads those of a claim."""

    kind = "reasons"
    window = False


def reason(family: str, key: str, **facts: Any) -> str:
    """Why a rule is clear or was not evaluated: the text `key` in [reasons] of words/<family>.ini, with its facts.
    Texts that several families use are in words/reasons.ini. A text of several parts has those whose facts are known.
    Raises KeyError for a key without a text, ValueError where a fact of its first part is missing."""
    own = sections(family).get("reasons", {})
    text = own[key] if key in own else sections("reasons")["reasons"][key]
    first, *more = (filled(part, Facts(family=family, **facts)) for part in text.strip().split("\n"))
    if first is None:
        raise ValueError(f"{family}: the reason {key} lacks a fact")
    return "; ".join([first, *(part for part in more if part is not None)])


def phrases(family: str, kind: str, part: str, /, *, window: bool = False, **facts: Any) -> list[str]:
    """The sentences of a part of section [`kind`] of which every fact is known, as `Claim.sentences` gives them."""
    return list(_sentences(_facts(family, kind, window=window, **facts), part))


def first_phrase(family: str, kind: str, part: str, /, *, window: bool = False, **facts: Any) -> str:
    """The first of them; '' without any."""
    return next(iter(phrases(family, kind, part, window=window, **facts)), "")


class Wording:
    """The sentences of one section of words/<family>.ini, for what is no claim: `say("stopped", ranks=(1, 2))`."""

    def __init__(self, family: str, kind: str) -> None:
        self._family, self._kind = family, kind

    def __call__(self, part: str, /, **facts: Any) -> str:
        """The first sentence of a part of which every fact is known. Raises KeyError where there is none."""
        if (sentence := next(_sentences(_facts(self._family, self._kind, **facts), part), None)) is None:
            raise KeyError(f"words/{self._family}.ini has no sentence for {self._kind}.{part} with {sorted(facts)}")
        return sentence


def _facts(family: str, kind: str, **facts: Any) -> Facts:
    known = Facts(family=family, **facts)
    known.kind = kind
    return known


def _sentences(known: Claim | Facts, part: str) -> Iterator[str]:
    """The sentences of a part of a section of which every fact is known."""
    for line in sections(known.family)[known.kind].get(part, "").split("\n"):
        if line and (sentence := filled(line, known)) is not None:
            yield sentence


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, Sized) and not len(value))


def filled(template: str, claim: Claim | Facts) -> str | None:
    """A sentence with its facts; None where one of them is not known, or a condition does not hold. '{name:part}' is
    the first text of `name`, in its section or else in [words], whose facts are known, or nothing."""
    said = ""
    for text, name, spec, _ in Formatter().parse(template):
        said += text
        if name is None:
            continue
        if name in _STEP:
            said += _STEP[name](claim.window)
            continue
        if spec == "part":
            file = sections(claim.family)
            own = (file[claim.kind] if name in file[claim.kind] else file["words"])[name].split("\n")
            part = next((one for line in own if line and (one := filled(line, claim)) is not None), "")
            said += part if part[:1] in _JOINED or said[-1:] in ("", " ") else f" {part}"
            continue
        value: Any = claim
        for step in name.split("."):
            value = getattr(value, step, None)
        empty = _is_empty(value)
        if spec == "unless":
            if not empty:
                return None
            continue
        if empty:
            return None
        shown = _shown(value, spec or "", claim)
        if shown is None:
            return None
        said += shown
    return said


def _shown(value: Any, spec: str, claim: Claim | Facts) -> str | None:
    """A fact in words. '=because': the text `because.<value>` of its section, or of the family's [words]. '^because' is
    the same with a capital letter; '|waits|wait' is for one and for several."""
    if spec.startswith("^"):
        said = _shown(value, f"={spec[1:]}", claim)
        return None if said is None else f"{said[:1].upper()}{said[1:]}"
    if spec.startswith("="):
        own, shared = (sections(claim.family).get(name, {}) for name in (claim.kind, "words"))
        key = f"{spec[1:]}.{value}"
        return filled(own[key] if key in own else shared[key], claim)
    if spec.startswith("|"):
        one, several = spec[1:].split("|")
        return one if (len(value) if isinstance(value, Sized) else value) == 1 else several
    return _SPECS[spec](value)


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {ranks_text(steps, 4, counted=False)}"


_JOINED = ("", ",", ";", ".", ":")  # how a part begins that follows without a blank

_SPECS: Mapping[str, Callable[[Any], str]] = {
    "": str,
    "if": lambda value: "",
    "ms": lambda value: f"{units.ms_text(value)} ms",
    "pct": units.percent_text,
    "times": lambda value: f"{value:.2f}",
    "0": lambda value: f"{value:.0f}",
    "1": lambda value: f"{value:.1f}",
    "cap": lambda value: f"{value[:1].upper()}{value[1:]}",
    "digits": lambda value: f"{value:.3g}",
    "g": lambda value: f"{value:g}",
    "gbs": lambda value: f"{units.rate_text(value)} GB/s",
    "size": units.size_text,
    "sizes": lambda value: units.size_range_text(*value),
    "gib": units.gib_text,
    "count": units.count_text,
    "mean": units.mean_count_text,
    "whole": lambda value: f"{value:,.0f}",
    "ranks": lambda value: who(value, 4),
    "Ranks": lambda value: who_first(value, 4),
    "steps": _steps,
    "Steps": lambda value: _steps(value).capitalize(),
    "name": lambda value: short_name(value, 60).strip(),
    "to": lambda value: f"{value[0]} to {value[1]}",
    "s": lambda value: f"{value:.3g} s",
    "number": lambda value: str(len(value)),
    "list": lambda value: ", ".join(map(str, value)),
    "semicolons": lambda value: "; ".join(map(str, value)),
    "and": lambda value: " and ".join(filter(None, (", ".join(map(str, value[:-1])), str(value[-1])))),
    "roles": lambda value: ", ".join(f"{ROLES[role]} {units.ms_text(ms)} ms" for role, ms in value.items()),
}
_STEP: Mapping[str, Callable[[bool], str]] = {
    "per": lambda window: "in the window" if window else "per step",
    "the": lambda window: (WINDOW if window else STEP).the,
    "a": lambda window: (WINDOW if window else STEP).a,
    "each": lambda window: (WINDOW if window else STEP).each,
}
