"""TO-D401 to TO-D403 and TO-D409: names that nothing reads, values that are not allowed, and NCCL's files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import HostContext, Level, Look
from traceops.machine.variables import FAMILIES, SWITCH, Variable, as_number, known_variables, version_of
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
    """Everything that is wrong with the variables that are set, or one Look that says nothing is.

    files: what `nccl_files` found. Values of variables that are not known are not shown: they may be secrets.
    """
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
    if not looks:
        found = f"{count} known, none wrong" if count else "none set"
        looks = [Look(host, "environment", "variables of NCCL and torch", found)]
    return tuple(looks)


def _of_file(path: str, settings: Mapping[str, str], environ: Mapping[str, str], host: str) -> Look:
    shown = ", ".join(
        f"{name}={value}" for name, value in list(settings.items())[:8] if name in known_variables().variables
    )
    beaten = [name for name in settings if name in environ]
    return Look(
        host, "environment", path, (shown or f"{len(settings)} settings")[: 4 * _SHOWN], "note",
        "NCCL reads this file: it sets these though the environment does not show them"
        + (f"; the environment beats its {', '.join(beaten)}" if beaten else ""),
        f"leave out what is not wanted: edit {path}, or set the variable in the environment, which wins",
        {"set": {name: value for name, value in settings.items() if name in known_variables().variables}},
        rule=NCCL_FILE.id,
    )  # fmt: skip


def _of_known(variable: Variable, value: str, context: HostContext, host: str) -> list[Look]:
    name = variable.name
    if not value.strip():
        return []
    if name in known_variables().renamed and (replaced := _renamed(name, value, context, host)):
        return [replaced]
    looks = []
    if (wrong := _wrong_value(variable, value, context, host)) is not None:
        looks.append(wrong)
    version = context.torch if name.startswith("TORCH_") else context.nccl if name.startswith("NCCL_") else None
    library = "torch" if name.startswith("TORCH_") else "NCCL"
    installed = version_of(version or "")[:2]
    if installed and variable.since and installed < version_of(variable.since):
        looks.append(
            setting(
                host, name, value, "note", f"{library} {version} does not know it: new in {library} {variable.since}",
                f"unset {name}, or use a newer {library}", rule=NOT_READ,
            )
        )  # fmt: skip
    elif installed and variable.until and installed > version_of(variable.until):
        looks.append(
            setting(host, name, value, "note", f"not read any more after {library} {variable.until}", f"unset {name}",
                    rule=NOT_READ)
        )  # fmt: skip
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
    why = f"{'nothing reads it any more' if gone else 'an old name'}: {new} since {since}"
    same = known_variables().variables[new].values == variable.values if variable else True
    advice = (
        f"unset {name}; export {new}={value}"
        if same
        else f"unset {name}; see {new}: {known_variables().variables[new].does}"
    )
    return setting(host, name, value, "warning" if gone else "note", why, advice, rule=NOT_READ)


def _wrong_value(variable: Variable, value: str, context: HostContext, host: str) -> Look | None:
    name = variable.name
    words = {"NCCL_ALGO": _ALGORITHMS, "NCCL_PROTO": _PROTOCOLS}.get(name)
    if words is not None:
        unknown = _unknown_words(value, words)
        if not unknown:
            return None
        strict = version_of(context.nccl or "2.24")[:2] >= _STRICT_LISTS
        return setting(
            host, name, value, "error" if strict else "warning",
            f"{', '.join(unknown)} is none of {', '.join(words)}: NCCL "
            + ("ends with 'invalid usage'" if strict else "leaves it out without a word"),
            f"unset {name}", rule=WRONG_VALUE,
        )  # fmt: skip
    if variable.takes(value):
        return None
    advice = f"unset {name}, or set it to {variable.allowed()}"
    if isinstance(variable.values, range):
        number = as_number(value)
        if number is None:
            why = f"not a number: NCCL reads it as 0. It takes {variable.allowed()}"
            if variable.values == SWITCH and value.strip().casefold() in _MEANS_ON:
                advice = f"export {name}=1"
            return setting(host, name, value, "warning", why, advice, rule=WRONG_VALUE)
        return setting(host, name, value, "note", f"it takes {variable.allowed()}", advice, rule=WRONG_VALUE)
    near = difflib.get_close_matches(value.upper(), variable.values or (), 1, 0.6)
    if near:
        advice = f"export {name}={near[0]}"
    # torch refuses to start at such a value, NCCL goes on as if nothing were set
    level: Level = "error" if name.startswith("TORCH_") else "warning"
    return setting(host, name, value, level, f"it takes {variable.allowed()}", advice, rule=WRONG_VALUE)


def _unknown_words(value: str, words: Sequence[str]) -> list[str]:
    known = {word.casefold() for word in (*words, *_FUNCTIONS)}
    return [word for word in _WORD_OF_A_LIST.findall(value) if word.casefold() not in known]


def _of_unknown(name: str, set_: Mapping[str, str], host: str) -> list[Look]:
    """A name that nothing reads: with the right one where it is close to one."""
    if name in known_variables().unrelated:
        return []
    if name in known_variables().renamed:
        new, since = known_variables().renamed[name]
        return [
            Look(host, "environment", name, "set", "note", f"an old name: {new} since {since}",
                 f"unset {name}; export {new}={_quoted(set_[name], new)}", rule=NOT_READ.id)
        ]  # fmt: skip
    if name in known_variables().unread:
        return [
            Look(host, "environment", name, "set, read by nothing", "warning",
                 "neither NCCL nor torch knows this name", f"unset {name}; {known_variables().unread[name]}",
                 rule=UNKNOWN_NAME.id)
        ]  # fmt: skip
    family = name.upper().startswith(FAMILIES)
    if not family and not _ALMOST_A_FAMILY.match(name):
        return []
    right = _closest(name)
    if right is not None:
        return [
            Look(
                host, "environment", name, "set, read by nothing", "warning",
                f"there is no such variable; is {right} meant? ({known_variables().variables[right].does})",
                f"unset {name}"
                + ("" if right in set_ else f"; if {right} is meant: export {right}={_quoted(set_[name], right)}"),
                {"right": right}, rule=UNKNOWN_NAME.id,
            )
        ]  # fmt: skip
    if not family:
        return []
    return [
        Look(host, "environment", name, "set", "note", "neither NCCL, torch nor Gloo is known to read it",
             f"if it is meant for a plugin, leave it; else unset {name}", rule=UNKNOWN_NAME.id)
    ]  # fmt: skip


def _closest(name: str) -> str | None:
    """The variable that a misspelt name means; None where none is close."""
    upper = name.upper()
    for meant in (upper, f"TORCH_{upper}", upper.removeprefix("TORCH_"), upper.removesuffix("D")):
        if meant in known_variables().variables:
            return meant
    near = difflib.get_close_matches(upper, known_variables().variables, 1, _CLOSE)
    if near:
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
