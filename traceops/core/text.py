"""Text from a trace, a path or a store, before it is shown; whose code a path is, and which name a wrong one meant."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from traceops.words.catalogue import texts

# Signs that a spreadsheet takes for the begin of a formula, also in their full-width form. Our CSV files put ' before.
FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")

# Signs that turn the direction of what follows, in a page or table beyond the name that holds them.
TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))

# Spaces of fixed width, as in '34\u202f999', are none that Python calls printable.
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2009\u202f"), " ")


class _Pattern:
    """A regular expression that is compiled when one of its methods is first asked for."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self.flags)
        found = getattr(compiled, name)
        for each in ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split"):
            setattr(self, each, getattr(compiled, each))  # asked for without this method from now on
        return found


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """The regular expression, for a module whose expressions most runs never use: to compile them takes long."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


# Lines of a log repeat but for their numbers: what reads no number in them judges each shape of a line once.


_Told = TypeVar("_Told")
_DIGITS = bytes.maketrans(b"0123456789", b"3333333333")
_MOST_SHAPES, _LONGEST_SHAPE = 1 << 11, 1 << 10


def by_shape(judge: Callable[[str], _Told]) -> Callable[[str], _Told]:
    """The same judgement, made once for texts that differ in digits only. It is given the shape, in which each digit
    is 3, so it may not ask for another digit. Long texts are judged each, and the shapes that are kept are limited."""
    known: dict[bytes, _Told] = {}

    @wraps(judge)
    def judged(text: str) -> _Told:
        shape = text.encode("utf-8", "surrogatepass").translate(_DIGITS)
        try:
            return known[shape]
        except KeyError:
            told = judge(shape.decode("utf-8", "surrogatepass"))
        if len(shape) <= _LONGEST_SHAPE:
            if len(known) >= _MOST_SHAPES:
                known.clear()
            known[shape] = told
        return told

    return judged


def perhaps_in(of_words: Iterable[tuple[str, _Told]]) -> Callable[[str], tuple[_Told, ...]]:
    """A look for those whose word a text may hold: it does, but for the digits."""
    shapes = [(word.encode().translate(_DIGITS).decode(), of_word) for word, of_word in of_words]
    return by_shape(lambda text: tuple(of_word for shape, of_word in shapes if shape in text))


def printable(text: str) -> str:
    """Text from a trace or a path without the control characters that would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.translate(_SPACES))


# Names and text from traces, short enough to read.

_BRACKETS = re.compile(r"[<>(]")


@lru_cache(maxsize=1 << 12)  # ranks have the same kernels
def short_name(text: str, limit: int = 72) -> str:
    """A long name without return type, namespaces and parameters; the middle left out if still too long."""
    if len(text) <= limit:
        return text
    short = re.sub(r"^(void|static|inline|__global__)\s+", "", " ".join(text.split()))
    short = short.replace("(anonymous namespace)::", "")
    short = _without_parameters(short)
    short = re.sub(r"\b(?:\w+::)+(?=\w)", "", short) or text
    return short if len(short) <= limit else f"{short[: limit * 2 // 3]}…{short[-(limit // 3) :]}"


def _without_parameters(text: str) -> str:
    """Cut the last parenthesis that stands outside template brackets and what follows it."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        char, at = bracket.group(), bracket.start()
        depth += (char == "<") - (char == ">")
        if char == "(" and depth <= 0 and at:
            return text[:at]
    return text


def one_line(text: str, limit: int) -> str:
    """Text from a trace on one line: white space joined, control characters made visible, not longer than `limit`."""
    joined = " ".join(text.split())
    clean = "".join(char if char.isprintable() else "\ufffd" for char in joined)
    return clean if len(clean) <= limit else f"{clean[: limit - 2].rstrip()} …"


def first_words(text: str, limit: int) -> str:
    """The same, cut between words, so that no number loses digits; within a word only where that is most of it."""
    words = textwrap.shorten(one_line(text, len(text) + 2), limit, placeholder=" …")
    return words if len(words) > limit // 2 or len(text) <= limit else one_line(text, limit)


USUAL_WIDTH = 80  # of what is no terminal: a pipe, a file, a job's log
_LEAST_WIDTH = 20
_ERRORS = "traceops-signs"

# What our signs are where only ASCII can be shown; of the rest accents go, and then ? stands for it.
_ASCII = {
    "–": "-", "—": "-", "‑": "-", "−": "-", "·": "|", "•": "*", "…": "...", "→": "->", "←": "<-", "⇒": "=>", "×": "x",
    "÷": "/", "µ": "u", "μ": "u", "█": "#", "▏": "|", "✖": "x", "▲": "!", "●": "o", "✔": "+", "≥": ">=", "≤": "<=",
    "≈": "~", "±": "+-", "⁹": "9", "⁻": "-", "²": "2", "³": "3", "⁴": "4", "‘": "'", "’": "'", "“": '"', "”": '"',
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
}  # fmt: skip


def width_of(file: TextIO) -> int | None:
    """Columns of a terminal, as COLUMNS or it says; 80 of a pipe or file; None of text that stays in memory."""
    try:
        descriptor = file.fileno()
    except (OSError, ValueError, AttributeError):
        descriptor = None
    if descriptor is None and not file.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() else 0
    if not columns and descriptor is not None and file.isatty():
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(descriptor).columns
    return max(columns or USUAL_WIDTH, _LEAST_WIDTH)


def broken_at_words(text: str, width: int | None, hanging: int = 0) -> list[str]:
    """Lines no wider than that, if it is given; further ones begin with blanks. A word that is wider, as a path may be,
    is not broken. What stands before the first word stays."""
    if width is None or len(text) <= width:
        return [text]
    indent = max(hanging, len(text) - len(text.lstrip(" ")))
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * min(indent, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return lines or [text]


def show_our_signs(stream: TextIO) -> None:
    """Have a stream show ASCII for signs that it lacks, and never fail for one."""
    if isinstance(stream, io.TextIOWrapper):
        # Somebody set a locale of ASCII: Python takes UTF-8 all the same, unless it is given an encoding.
        given = "PYTHONIOENCODING" in os.environ or "PYTHONUTF8" in os.environ
        wanted = not given and os.environ.get("LC_ALL") in ("C", "POSIX")
        stream.reconfigure(encoding="ascii" if wanted else None, errors=_ERRORS)


def as_shown(text: str, stream: TextIO) -> str:
    """Text in the signs that a stream of `show_our_signs` has: '...' for '…', so that its width can be counted."""
    if stream.errors != _ERRORS:
        return text
    return text.encode(stream.encoding, _ERRORS).decode(stream.encoding)


def json_for(stream: TextIO, text: str) -> str:
    """JSON as the stream can show it: what it lacks is escaped and means the same."""
    if (stream.encoding or "utf-8").lower().startswith("utf"):
        return text
    return re.sub(r"[^\x00-\x7f]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Of codecs' error handlers: what stands for characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(sign, "?") for sign in lacking), error.end


codecs.register_error(_ERRORS, _in_ascii)


# torch/_inductor/codecache.py: `code_hash` is "c" and 51 letters of a hash in base 32, two of which name its folder.
# That may lie anywhere; by itself it is in torchinductor_USER, as a folder of a program's own may be called too.
_WRITTEN = re.compile(r"/torchinductor_[^/]+/[a-z2-7]{2}/[^/]+$|(?:^|[/\\])c[a-z2-7]{51}\.py$")


def is_compiled_code(file: str) -> bool:
    """Whether torch.compile has written this file of Python."""
    return _WRITTEN.search(file) is not None


# Packages that are no program's own, by the first part of a path that is relative to a folder of sys.path.

# Known wherever stacks are read. Both readers add names of their own: what a hang's stack stands in is told also of
# packages that people train from a checkout (Megatron-LM, torchtitan), whose time is no function of the program's.
LIBRARIES = frozenset(
    {
        "torch", "torchvision", "torchdata", "traceops", "numpy", "transformers", "accelerate", "deepspeed", "datasets",
        "lightning", "lightning_fabric", "pytorch_lightning", "safetensors", "huggingface_hub", "triton", "wandb",
        "webdataset", "peft", "trl", "composer", "ray",
    }
)  # fmt: skip

_MOST_ENTRIES = 10_000
_SLIPS = 4  # letters for each slip of the fingers that a word may have, and a shorter word may have one
_SHORT = 3  # letters: shorter words are too much alike


def closest(word: str, there: Iterable[str]) -> str | None:
    """The one name that a word certainly means, or None: what other tools call it, a slip, or how one name begins.

    Other tools' words are in words/also.ini; a name there may have a value, as `--format json` has. A slip is a letter
    too many, too few, another one or two in turn: one in four letters, and fewer than to any other name.
    """
    names, wanted = list(there), _plain(word)
    for name, also in texts("also", "names").items():
        if name.partition(" ")[0] in names and (word in also.split() or wanted in map(_plain, also.split())):
            return name
    plain = {_plain(name): name for name in names}
    if (slip := _slip(wanted, plain)) is not None:
        return plain[slip]
    begun = [name for own, name in plain.items() if len(wanted) >= _SHORT and own.startswith(wanted)]
    return begun[0] if len(begun) == 1 else None


def _slip(wanted: str, there: Iterable[str]) -> str | None:
    """The name that a word differs from by few slips, and by more from any other."""
    near = sorted((_slips(wanted, own), own) for own in there)[:2]
    if not near or (near[0][0] == near[-1][0] and len(near) > 1):
        return None
    slips, own = near[0]
    shorter = min(len(wanted), len(own))
    return own if slips == 0 or (shorter >= _SHORT and slips <= max(1, shorter // _SLIPS)) else None


def _slips(word: str, other: str) -> int:
    """Letters to add, drop, change or swap with their neighbour to make one word of the other."""
    before, last = [0] * (len(other) + 1), list(range(len(other) + 1))
    for at, letter in enumerate(word):
        row = [at + 1]
        for to, own in enumerate(other):
            row.append(min(last[to + 1] + 1, row[to] + 1, last[to] + (letter != own)))
            if at and to and letter == other[to - 1] and own == word[at - 1]:
                row[-1] = min(row[-1], before[to - 1] + 1)
        before, last = last, row
    return last[-1]


def _plain(word: str) -> str:
    """Without dashes in front, which make all options alike."""
    return word.lstrip("-").casefold().replace("_", "-")


def meant(word: str, there: Iterable[str]) -> str:
    """'; did you mean analyze?', or nothing where nothing is like it."""
    close = closest(word, there)
    return f"; did you mean {close}?" if close else ""


def traced_runs(folder: Path = Path("profile")) -> list[Path]:
    """The runs of a folder that hold traces, the newest last."""
    files = [
        file
        for file in islice(folder.glob("*/run.json"), _MOST_ENTRIES)
        if any(file.parent.glob("rank_*/*trace.json*"))
    ]
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime)]


def newest_run(folder: Path = Path("profile")) -> Path | None:
    """The run of a folder that began last, of those that hold traces."""
    return next(reversed(traced_runs(folder)), None)


def near_path(path: str, *, run: bool = True) -> str:
    """'; did you mean profile/ddp?' for the first part of a path that is not there, or nothing. Where no name is like
    it and a run is meant: the newest run of that folder, or of profile/. The id of a rule is explained."""
    if "://" in path:
        return ""
    if re.fullmatch(r"TO-[A-Z]\d+", path):
        return f"; what this rule means: traceops explain {path}"
    given = Path(path)
    whole = [*reversed(given.parents), given]
    if not (at := next((at for at, part in enumerate(whole) if not part.exists()), None)):
        return ""
    parent, wrong = whole[at].parent, whole[at].name
    try:
        names = [entry.name for _, entry in zip(range(_MOST_ENTRIES), parent.iterdir(), strict=False)]
    except OSError:
        return ""
    if (close := _slip(wrong, names) or _of_its_stem(wrong, names)) is None:
        newest = (newest_run(parent) or newest_run()) if run and not given.suffix else None
        return "" if newest is None else f"; the newest run there is {newest}"
    found = parent / close
    rest = Path(*given.parts[len(found.parts) :]) if len(given.parts) > len(found.parts) else None
    if rest is not None and not (found / rest).exists():
        rest = None
    return f"; did you mean {found if rest is None else found / rest}?"


def _of_its_stem(wrong: str, names: Iterable[str]) -> str | None:
    """The only name with these letters and digits before the first dot: rank1.json is rank_1.pt.trace.json.gz."""
    stems: dict[str, list[str]] = {}
    for name in names:
        stems.setdefault(_stem(name), []).append(name)
    own = _stem(wrong) if _stem(wrong) in stems else _slip(_stem(wrong), stems) if "." not in wrong else None
    return stems[own][0] if own and len(stems[own]) == 1 else None


def _stem(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.partition(".")[0].casefold())
