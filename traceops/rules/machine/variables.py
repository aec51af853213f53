"""TO-D401 to TO-D403 and TO-D409: names that nothing reads, values that are not allowed, and NCCL's files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import HostContext, Level, Look
from traceops.machine.variables import FAMILIES, SWITCH, Variable, as_number, known_variables, version_of
from traceops.rules.machine.limits import looked
from traceops.rules.machine.variable_clashes import clashes, costs, setting

UNKNOWN_NAME = described("machine", "TO-D401", JudgedBy.DOCTOR)
WRONG_VALUE = described("machine", "TO-D402", JudgedBy.DOCTOR)
NOT_READ = described("machine", "TO-D403", JudgedBy.DOCTOR)
NCCL_FILE = described("machine", "TO-D409", JudgedBy.DOCTOR)
RULES = (UNKNOWN_NAME, WRONG_VALUE, NOT_READ, NCCL_FILE)
_CLOSE = 0.84  # of difflib: NCCL_P2P_DISABLED is 0.97 like NCCL_P2P_DISABLE, NCCL_FOO_BAR 0.6 like anything
_ALMOST_A_FAMILY = re.compile(r"(NCLL|NCCCL|NCL|NNCL|NCC|TROCH|TOCH|GLO)_", re.IGNORECASE)
_WORD_OF_A_LIST = re.compile(r"[^,;:^]+")
_ALGORITHMS = ("Tree", "Ring", "CollNet", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_STRICT_LISTS = (2, 24)  # from here on NCCL ends with an error at a word it does not know
_SHOWN = 80
_MEANS_ON = ("true", "yes", "on", "y", "t", "enable", "enabled")


def check_variables(
    environ: Mapping[str, str],
    host: str,
    context: HostContext | None = None,
    files: Sequence[tuple[str, Mapping[str, str]]] = (),
) -> tuple[Look, ...]:
    """Everything that is wrong with the variables that are set, or one Look that says nothing is. files: what
    `nccl_files` found. Values of variables that are not known are not shown: they may be secrets."""
    context = context or HostContext()
    looks = [_of_file(path, settings, environ, host) for path, settings in files if settings]
    set_ = dict(environ)
    for _, settings in files:
        set_ = {**settings, **set_}
    count = 0
    for name in sorted(set_):
        variable = known_variables().variables.get(name)
        count += variable is not None and name.startswith((*FAMILIES, "CUDA_", "TORCH_", "FI_"))
        looks += _of_known(variable, set_[name], context, host) if variable else _of_unknown(name, set_, host)
    judged = {look.what for look in looks if look.level in ("warning", "error")}
    looks += [look for look in costs(set_, context, host) if look.what not in judged]
    looks += clashes(set_, context, host)
    if context.gpus == 0:  # no job here uses NCCL: nothing fails, but what is set may be meant for other nodes
        looks = [replace(look, level="warning") if look.level == "error" and look.what.startswith("NCCL_") else look
                 for look in looks]  # fmt: skip
    return tuple(looks or [looked(host, "variables", "none_wrong", count=count or None)])


def _of_file(path: str, settings: Mapping[str, str], environ: Mapping[str, str], host: str) -> Look:
    known = {name: value for name, value in settings.items() if name in known_variables().variables}
    shown = ", ".join(f"{name}={known[name]}" for name in list(settings)[:8] if name in known)
    beaten = [name for name in settings if name in environ]
    shown = (shown or f"{len(settings)} settings")[: 4 * _SHOWN]
    return looked(host, "variables", "file", {"set": known}, name=path, settings=shown, beaten=beaten)


def _of_known(variable: Variable, value: str, context: HostContext, host: str) -> list[Look]:
    name = variable.name
    if not value.strip():
        return []
    if name in known_variables().renamed and (replaced := _renamed(name, value, context, host)):
        return [replaced]
    wrong = _wrong_value(variable, value, context, host)
    looks = [] if wrong is None else [wrong]
    version = context.torch if name.startswith("TORCH_") else context.nccl if name.startswith("NCCL_") else None
    library = "torch" if name.startswith("TORCH_") else "NCCL"
    installed = version_of(version or "")[:2]
    look = partial(setting, host, "variables", name=name, value=value, library=library)
    if installed and variable.since and installed < version_of(variable.since):
        looks.append(look("too_early", version=version, since=variable.since))
    elif installed and variable.until and installed > version_of(variable.until):
        looks.append(look("too_late", until=variable.until))
    return looks


def _renamed(name: str, value: str, context: HostContext, host: str) -> Look | None:
    """A note on an old name, where the version in use has the new one."""
    new, since = known_variables().renamed[name]
    library, _, first = since.rpartition(" ")
    version = {"torch": context.torch, "NCCL": context.nccl}.get(library)
    if version is not None and version_of(version)[:2] < version_of(first):
        return None
    variable = known_variables().variables.get(name)
    gone = variable is not None and bool(variable.until)
    now = known_variables().variables.get(new)
    same = variable is None or (now is not None and now.values == variable.values)
    return setting(
        host, "variables", "renamed", name, value,
        level="warning" if gone else None, gone=gone, new=new, since=since, same=same, right=value,
        does=now.does if now else None,
    )  # fmt: skip


def _wrong_value(variable: Variable, value: str, context: HostContext, host: str) -> Look | None:
    name = variable.name
    look = partial(setting, host, "variables", name=name, value=value)
    if (words := {"NCCL_ALGO": _ALGORITHMS, "NCCL_PROTO": _PROTOCOLS}.get(name)) is not None:
        known = {word.casefold() for word in (*words, *_FUNCTIONS)}
        unknown = [word for word in _WORD_OF_A_LIST.findall(value) if word.casefold() not in known]
        strict = version_of(context.nccl or "2.24")[:2] >= _STRICT_LISTS
        level: Level | None = "error" if strict else None
        allowed = ", ".join(words)
        return look("unknown_words", level=level, words=unknown, allowed=allowed, strict=strict) if unknown else None
    if variable.takes(value):
        return None
    allowed = variable.allowed()
    if isinstance(variable.values, range):
        if as_number(value) is not None:
            return look("not_allowed", level="note", allowed=allowed)
        on = variable.values == SWITCH and value.strip().casefold() in _MEANS_ON
        return look("no_number", allowed=allowed, right=1 if on else None)
    near = difflib.get_close_matches(value.upper(), variable.values or (), 1, 0.6)
    # torch refuses to start with such a value, NCCL ignores it.
    level = "error" if name.startswith("TORCH_") else None
    return look("not_allowed", level=level, allowed=allowed, right=near[0] if near else None)


def _of_unknown(name: str, set_: Mapping[str, str], host: str) -> list[Look]:
    """A name that nothing reads: with the right one where it is close to one."""
    if name in known_variables().unrelated:
        return []
    look = partial(looked, host, "variables", name=name)
    if name in known_variables().renamed:
        new, since = known_variables().renamed[name]
        renamed = look("renamed", new=new, since=since, same=True, right=_quoted(set_[name], new))
        return [replace(renamed, found="set")]
    if name in known_variables().unread:
        return [look("unread", instead=known_variables().unread[name])]
    family = name.upper().startswith(FAMILIES)
    if not family and not _ALMOST_A_FAMILY.match(name):
        return []
    if (right := _closest(name)) is not None:
        value = None if right in set_ else _quoted(set_[name], right)
        does = known_variables().variables[right].does
        return [look("misspelt", {"right": right}, new=right, does=does, right=value)]
    return [look("unknown")] if family else []


def _closest(name: str) -> str | None:
    """The variable that a misspelt name means; None where none is close."""
    upper = name.upper()
    for meant in (upper, f"TORCH_{upper}", upper.removeprefix("TORCH_"), upper.removesuffix("D")):
        if meant in known_variables().variables:
            return meant
    if near := difflib.get_close_matches(upper, known_variables().variables, 1, _CLOSE):
        return near[0]
    head, _, rest = upper.partition("_")
    if rest and _ALMOST_A_FAMILY.match(f"{head}_") and f"NCCL_{rest}" in known_variables().variables:
        return f"NCCL_{rest}"
    return None


def _quoted(value: str, name: str) -> str:
    """The value where it is one the right name takes: a secret is none."""
    return (
        value
        if known_variables().variables[name].values is not None and known_variables().variables[name].takes(value)
        else "…"
    )
