"""Which programs' outputs a text holds, and what of them cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable

from traceops.machine.bug_report import driver_log, is_bug_report
from traceops.machine.nvlink import named_gpus, p2p_matrices, parse_nvlink_status
from traceops.machine.smi import parse_smi
from traceops.machine.smi_list import gpus_of_list, lists_of_gpus
from traceops.machine.smi_table import lost_gpus, parse_table, tables
from traceops.machine.smi_text import listed_gpus
from traceops.machine.torch_environment import parse_environment
from traceops.machine.xids import begins_at_boot, parse_failures, parse_xids

Found = tuple[str, str | None]  # the output, empty where there is none, and what cannot be used

_OTHER_P2P = re.compile(r"-p2p\s+(?!rw?\b|w\b)\w")
NOT_WHOLE = "the output of nvidia-smi -q is cut off, or was made with -d or -i; give the whole output"
SEVERAL_LINKS = (
    "`nvidia-smi nvlink -s` of several machines in one file, unnamed; give each in a file of its own"
)
NOT_WHOLE_TABLE = "the table of nvidia-smi is cut off: {} of its GPUs has no second row, and is not judged"
SEVERAL_TABLES = "tables of nvidia-smi of different GPUs in one file, unnamed; give each in a file of its own"
SEVERAL_LISTS = "lists of different GPUs (nvidia-smi -L) in one file, unnamed; give each in a file of its own"
SEVERAL_P2P = "matrices of direct access that differ; give the one of `nvidia-smi topo -p2p r` alone"


def _smi(text: str) -> Found:
    smi = parse_smi(text)
    if smi is None or not smi.gpus:
        return "", NOT_WHOLE if smi is not None or "<nvidia_smi_log" in text else None
    whole, listed = len(smi.gpus), listed_gpus(text)
    return text, f"{NOT_WHOLE}: {whole} of {listed} GPUs are whole" if whole < listed else None


def _table(text: str) -> Found:
    if not tables(text):
        return text if lost_gpus(text) else "", None
    table = parse_table(text)
    if table is None:
        return "", SEVERAL_TABLES
    return text, NOT_WHOLE_TABLE.format(table.half) if table.half and parse_smi(text) is None else None


def _links(text: str) -> Found:
    named = named_gpus(text) if "(UUID: " in text else ()
    if not named or not any(one.up or one.down for one in parse_nvlink_status(text).values()):
        return "", None
    once = len({index for index, _, _ in named}) == len(named)
    return (text, None) if once else ("", SEVERAL_LINKS)


def _list(text: str) -> Found:
    if gpus_of_list(text):
        return text, None
    return "", SEVERAL_LISTS if lists_of_gpus(text) and _links(text)[1] is None else None


def _environment(text: str) -> Found:
    return text if parse_environment(text) is not None else "", None


def _p2p(text: str) -> Found:
    matrices = p2p_matrices(text) if "GPU0" in text else []
    if not matrices or _OTHER_P2P.search(text):
        return "", None
    return (text, None) if all(one == matrices[0] for one in matrices) else ("", SEVERAL_P2P)


def _log(text: str) -> Found:
    if not (parse_xids(text) or parse_failures(text) or begins_at_boot(text)):
        return "", None
    return driver_log(text) if is_bug_report(text) else text, None


# By what `SavedOutputs.outputs` calls them.
PROGRAMS: tuple[tuple[str, Callable[[str], Found]], ...] = (
    ("smi", _smi),
    ("table", _table),
    ("list", _list),
    ("environment", _environment),
    ("nvlink", _links),
    ("p2p", _p2p),
    ("log", _log),
)
