"""The key of a baseline: what two captures must have in common for their times to be comparable."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from traceops.report.run import Run

UNKNOWN = "unknown"

# What the model part says beside the model's name, each where it is known: key of `training`, letter in the key.
_SIZES = (("layers", "l"), ("dim", "d"), ("seq_len", "s"), ("batch_size", "b"), ("grad_accum", "a"))
_MOST_LETTERS = 40  # of one part in a slug; the hash tells longer ones apart
_HASH_LETTERS = 12
SLUG = re.compile(rf"[a-z0-9.]+(?:[-_][a-z0-9.]+)*-[0-9a-f]{{{_HASH_LETTERS}}}")


@dataclass(frozen=True)
class Key:
    """Words that name a series of captures; what a run does not say is "unknown".

    model: its name and sizes, such as "gpt-l8-d1024-s512-b8" (layers, dim, sequence length, batch size of a
    rank, "a4" for 4 accumulated micro-batches), or whatever name it was given. topology: hosts and ranks on
    each, such as "2x8".
    """

    model: str
    world_size: str
    gpu: str
    topology: str
    strategy: str
    precision: str
    branch: str

    @property
    def slug(self) -> str:
        """The key as the name of a folder: lower-case ASCII, and a hash that tells apart what looks the same.

        It depends on nothing but the words, so that all machines and versions agree on it.
        """
        digest = hashlib.sha256(json.dumps(list(astuple(self)), ensure_ascii=True).encode("ascii"))
        words = (_safe(f"w{word}" if name == "world_size" else word) for name, word in self.words())
        return f"{'_'.join(words)}-{digest.hexdigest()[:_HASH_LETTERS]}"

    @property
    def text(self) -> str:
        """For people: the words in one line."""
        return " · ".join(
            f"{word} rank{'' if word == '1' else 's'}" if name == "world_size" else word for name, word in self.words()
        )

    def words(self) -> list[tuple[str, str]]:
        """(field, its word), in the order of the slug."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def matches(self, pattern: str) -> bool:
        """Whether `pattern` is, or as a shell pattern fits, the slug with or without its hash, or one of the words."""
        slug = self.slug
        texts = (slug, slug[: -_HASH_LETTERS - 1], *astuple(self))
        return any(text == pattern or fnmatchcase(text.lower(), pattern.lower()) for text in texts)


def key_of(run: Run, *, branch: str | None = None, name: str | None = None) -> Key:
    """The key of a capture from what its report says of the run; `branch` and `name` (of the model) replace its own."""
    training = _training(run)
    return Key(
        model=_word(name) if name else _model(training),
        world_size=_word(run.world_size),
        gpu=_word(run.device),
        topology=_topology(run),
        strategy=_word(run.strategy or training.get("strategy")),
        precision=_word(training.get("precision") or training.get("dtype")),
        branch=_word(branch or (run.git.branch if run.git else None)),
    )


def _training(run: Run) -> dict[str, Any]:
    """What the training says of itself; our runner keeps its options one level down, in `config`."""
    training = run.training or {}
    config = training.get("config")
    return {**(config if isinstance(config, Mapping) else {}), **training}


def _model(training: Mapping[str, Any]) -> str:
    known = {key: training[key] for key, _ in _SIZES if _is_number(training.get(key))}
    if known.get("grad_accum") == 1:
        del known["grad_accum"]
    sizes = [f"{letter}{int(known[key])}" for key, letter in _SIZES if key in known]
    return "-".join([_word(training.get("model") or training.get("model_name")), *sizes])


def _topology(run: Run) -> str:
    """Hosts times ranks on each; "2x?" where the ranks cannot lie evenly on them."""
    if not run.hosts or run.world_size is None:
        return UNKNOWN
    count = len(set(run.hosts))
    return f"{count}x{'?' if run.world_size % count else run.world_size // count}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18


def _word(value: Any) -> str:
    """Text without blanks at its ends; "unknown" for what is not known."""
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    return text or UNKNOWN


def _safe(word: str) -> str:
    """Letters, digits, dots and single dashes, whatever the word holds; never empty, no dot at the ends."""
    cut = re.sub(r"[^a-z0-9.]+", "-", "".join(c.lower() if c.isascii() else "-" for c in word))
    return cut[:_MOST_LETTERS].strip("-.") or "x"
