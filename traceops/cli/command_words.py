"""How `traceops run` understands the command after --: who starts the ranks, and how many."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.text import meant, near_path
from traceops.launch.launchers import PROGRAMS, python_program, starts_ranks
from traceops.launch.plan import python_path

_text = Wording("cli", "command")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?$")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
# Modules that start ranks themselves: torchrun's own ranks would each start them.
_LAUNCHING = ("torch.distributed.", "accelerate.", "deepspeed", "lightning", "horovod", "composer", "colossalai")
_TORCHRUN = "torch.distributed.run"
_AS_ENVIRONMENT = {"-u": "PYTHONUNBUFFERED", "-O": "PYTHONOPTIMIZE", "-B": "PYTHONDONTWRITEBYTECODE"}
_TAKES_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_CHECK_S = 30.0
_MOST_SCRIPTS = 5  # that are listed
_FINDS_US = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('traceops', 'msgspec', 'numpy'))))"


@dataclass(frozen=True)
class Command:
    """A command as `traceops run` starts it. trains: the script (or "-m", module) and its arguments, or the whole
    command where it starts its ranks (`own`). options: of `traceops run`, by name, that the command stands for.
    environment: variables it sets. note: how it was understood; empty where that is plain."""

    trains: tuple[str, ...]
    own: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def understand(words: Sequence[str], nproc: int | None, *, ours: bool = False) -> Command:
    """What a command asks for. nproc: of --nproc. ours: an option needs ranks that torchrun starts. Raises UsageError
    where there is no such script or program, with what can be done."""
    variables = {}
    rest = list(words)
    while len(rest) > 1 and _VARIABLE.match(rest[0]) and not Path(rest[0]).exists():
        name, _, value = rest.pop(0).partition("=")
        variables[name] = value
    command = _of_program(rest, nproc, ours)
    return replace(command, environment={**variables, **command.environment})


def names_a_program(word: str) -> bool:
    """Whether a command begins with this word, and no file of the working folder is meant."""
    return not Path(word).exists() and shutil.which(word) is not None


def name_of(words: Sequence[str]) -> str:
    """What a run may be called: after its script or module, else its program."""
    for at, word in enumerate(words):
        if word.endswith(".py"):
            return Path(word).stem
        if word in ("-m", "--module") and at + 1 < len(words) and words[at + 1] != _TORCHRUN:
            return words[at + 1].removesuffix(".__main__").rpartition(".")[2]
    return Path(words[0]).stem


def _of_program(words: Sequence[str], nproc: int | None, ours: bool) -> Command:
    if (first := words[0]) == "-m":
        module = words[1] if len(words) > 1 else ""
        return _of_module([sys.executable, *words], module, words[2:], nproc) or Command(tuple(words))
    if first.endswith(".py"):
        if not Path(first).exists():
            raise UsageError(_not_there(words))
        call = starts_ranks(list(words)) if nproc is None and not ours else None
        return Command(tuple(words)) if call is None else _as_it_is(words, f"{first} calls {call} and")
    if _PYTHON.match(Path(first).name) and shutil.which(first) is not None:
        return _of_python(words, nproc, ours)
    if Path(first).name == "torchrun":
        return _of_torchrun(words, words[1:], nproc)
    if (program := python_program(words)) != list(words):
        return Command(tuple(program))
    if Path(first).is_file() and not _starts(first):
        return Command(tuple(words))  # a script without a suffix
    if shutil.which(first) is None:
        raise UsageError(_not_there(words))
    return _as_it_is(words)


def _of_python(words: Sequence[str], nproc: int | None, ours: bool) -> Command:
    """`python [OPTIONS] SCRIPT`, `-m MODULE` or `-c CODE`: one process as it stands, ranks where --nproc asks."""
    at, environment, plain = _python_options(words)
    if not (rest := list(words[at:])):
        raise UsageError(f"{shlex.join(words)}: name the script after {words[0]}: traceops run -- {words[0]} train.py")
    if rest[0] == "-m" and len(rest) > 1:
        if (launching := _of_module(words, rest[1], rest[2:], nproc)) is not None:
            return launching
        if rest[1].endswith(".py") and Path(rest[1]).exists():
            raise UsageError(
                f"-m {rest[1]}: -m takes a module, not a file; did you mean {rest[1].removesuffix('.py')}?"
            )
    elif rest[0] not in ("-m", "-c", "-") and not Path(rest[0]).exists():
        raise UsageError(_not_there(rest))
    if rest[0] in ("-c", "-") or not plain or (nproc is None and not ours):
        if ours:
            raise UsageError(f"{shlex.join(words)}: this option needs a script or -m MODULE after {words[0]}")
        _check_python(words[0])
        shown = shlex.join(words[: at + (2 if rest[0] == "-m" else 1)])
        return Command(tuple(words), own=True, note=_text("one_process", command=shown))
    ranks = nproc or 1
    note = _started(rest, ranks, words[0])
    return Command(tuple(rest), options={"nproc": ranks}, environment=environment, note=note)


def _python_options(words: Sequence[str]) -> tuple[int, dict[str, str], bool]:
    """Where Python's own options end, the variables that stand for them, and whether there are variables for all."""
    environment: dict[str, str] = {}
    at, plain = 1, True
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        if words[at] in _AS_ENVIRONMENT:
            environment[_AS_ENVIRONMENT[words[at]]] = "1"
        elif words[at] == "-W" and at + 1 < len(words):
            environment["PYTHONWARNINGS"] = words[at + 1]
        else:
            plain = False
        at += 2 if words[at] in _TAKES_A_VALUE else 1
    return at, environment, plain


def _of_module(command: Sequence[str], module: str, rest: Sequence[str], nproc: int | None) -> Command | None:
    if module == _TORCHRUN:
        return _of_torchrun(command, rest, nproc)
    return _as_it_is(command, module) if module.startswith(_LAUNCHING) else None


def _of_torchrun(command: Sequence[str], words: Sequence[str], nproc: int | None) -> Command:
    """The same ranks, started by our own torchrun, which shows what it does before the first step. With options that
    ours does not take (restarts, an elastic number of nodes), torchrun runs as it is."""
    parser = _TorchrunParser(add_help=False)
    for name in ("nnodes", "nproc-per-node", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr",
                 "master-port"):  # fmt: skip
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", dest=name.replace("-", "_"))
    for names in (("--standalone",), ("-m", "--module")):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    try:
        options, trains = _torchrun_options(parser.parse_args(list(words)))
    except _Unclear:
        return _as_it_is(command)
    if nproc is not None:
        options["nproc"] = nproc
    if trains[0] != "-m" and not Path(trains[0]).exists():
        raise UsageError(_not_there(trains))
    ranks = options["nproc"]
    return Command(trains, options=options, note=_started(trains, ranks, "torchrun", options.get("nnodes", 1)))


def _started(trains: Sequence[str], ranks: int | None, by: str, nodes: int = 1) -> str:
    script = f"-m {trains[1]}" if trains[0] == "-m" else trains[0]
    return _text("started", ranks=ranks, script=script, nodes=nodes if nodes > 1 else None, by=by)


class _Unclear(Exception):
    """Options of torchrun that `traceops run` has no match for."""


class _TorchrunParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unclear(message)


def _torchrun_options(asked: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options of `traceops run` that mean the same, and the script. Raises _Unclear where there are none."""
    if any(name.startswith("PET_") for name in os.environ):  # torchrun's options by another way
        raise _Unclear("PET_")
    options: dict[str, Any] = {"nproc": _ranks(asked.nproc_per_node or "1")}
    for name in ("nnodes", "node_rank", "master_port"):
        if (text := getattr(asked, name)) is not None:
            if not text.isdecimal():
                raise _Unclear(name)
            options[name] = int(text)
    for name in ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr"):
        if getattr(asked, name) is not None:
            options[name] = getattr(asked, name)
    if asked.standalone or options.get("nnodes", 1) == 1:  # they meet on a free port, or on the one that is asked for
        options = {name: value for name, value in options.items() if name in ("nproc", "master_port")}
        if "master_port" in options:
            options["master_addr"] = "127.0.0.1"
    return options, (("-m",) if asked.module else ()) + (asked.script, *asked.arguments)


def _ranks(text: str) -> int | None:
    """torchrun's --nproc-per-node; None for one a GPU. Raises _Unclear."""
    if text.isdecimal() and int(text):
        return int(text)
    if text == "cpu":
        return os.cpu_count() or 1
    if text in ("gpu", "auto"):
        return None
    raise _Unclear(text)


def _as_it_is(words: Sequence[str], who: str = "") -> Command:
    who = who or Path(words[0]).name
    return Command(tuple(words), own=True, note=_text("as_it_is", who=who))


def _starts(file: str) -> bool:
    """Whether a file is a program of its own and no script in Python."""
    if file.endswith(".sh"):
        return True
    try:
        with Path(file).open("rb") as opened:
            first = opened.readline(256)
    except OSError:
        return False
    return os.access(file, os.X_OK) and not (first.startswith(b"#!") and b"python" in first)


def _check_python(name: str) -> None:
    """Raises UsageError for a Python that cannot find traceops: nothing would be recorded."""
    there = Path(shutil.which(name) or name)
    if there.parent.resolve() == Path(sys.executable).parent.resolve():
        return
    path = python_path(os.environ)
    env = {**os.environ, **({} if path is None else {"PYTHONPATH": path})}
    try:
        done = subprocess.run(
            [str(there), "-c", _FINDS_US], env=env, timeout=_CHECK_S, check=False, capture_output=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode:
        raise UsageError(_text("not_ours", name=name, there=there, ours=sys.executable))


def _not_there(words: Sequence[str]) -> str:
    """What is wrong with a first word that is no file and no program."""
    first = words[0]
    if Path(first).name in PROGRAMS:
        script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        return _text("not_installed", program=first, trains=None if script is None else shlex.join(words[script:]))
    apart = first.split()
    if len(apart) > 1 and (Path(apart[0]).exists() or shutil.which(apart[0])):
        return _text("one_word", word=first, words=shlex.join([*apart, *words[1:]]))
    script = next((at for at, word in enumerate(words) if Path(word).suffix == ".py" and Path(word).exists()), None)
    if first.startswith("-") and script is not None:
        return _text("before", words=shlex.join([*words[:script], "--", *words[script:]]))
    close = near_path(first, run=False) or meant(first, ("python", "python3", "torchrun", "accelerate", "deepspeed"))
    if close:
        return f"{first} does not exist{close}"
    is_path = bool(Path(first).suffix) or Path(first).name != first
    here = [file.name for file in sorted(Path().glob("*.py"))][:_MOST_SCRIPTS]
    example = f"traceops run -- {here[0]}" if len(here) == 1 else None
    return _text("no_such_file" if is_path else "no_such_word", word=first, here=", ".join(here), example=example)
