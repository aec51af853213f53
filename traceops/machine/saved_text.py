"""The text of a file that somebody saved, in parts of one host each: pdsh, clush, ansible and syslog name them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from traceops.core.regular_file import LARGEST_DOCUMENT
from traceops.traces.text_lines import whole_text

_MARKS = (
    b"NVSMI LOG",
    b"NVIDIA-SMI ",
    b"Volatile Uncorr. ECC",
    b"CUDA used to build PyTorch",
    b"GPU models and configuration",
    b"the device handle for",
    b"NVIDIA-SMI has failed",
    b"Failed to initialize NVML",
    b"Fabric",
    b"<nvidia_smi_log",
    b"NVRM: ",
    b"fallen off the bus",
    b"Linux version",
    b"(UUID: ",
    b"GPU0",
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
# ``node1: `` of pdsh and clush, ``0: `` of srun -l; not the driver's own tag in a log without times.
_SPEAKER = re.compile(r"^(?!NVRM:|nvidia[\w-]*:|GPU\d)([A-Za-z0-9][\w.-]{0,99}):(?: |$)")
_SPOKEN_SHARE = 0.9
_SAMPLE = 1 << 18  # characters
_MOST_SPEAKERS = 4096
_RULED = re.compile(r"^-{4,200}\n([\w.\[\],-]{1,200})(?: \(\d{1,6}\))?\n-{4,200}$", re.M)
_ANSIBLE = re.compile(r"^([\w.-]{1,100}) \| (?:CHANGED|SUCCESS|FAILED)\b.{0,40}>>$", re.M)
_SYSLOG = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,25}) ([\w.-]{1,100}) kernel: ", re.M
)
_REPORT = re.compile(r"^(?:=+NVSMI LOG=+\s*$|<\?xml |<nvidia_smi_log)", re.M)
_UUID = re.compile(r"^[ \t]{0,40}(?:GPU UUID {0,60}: |<uuid>)([\w-]{1,80})", re.M)
CUT_OFF = "what comes after the place where the archive is cut off or damaged"


def saved_text(path: Path) -> tuple[str, str | None]:
    """A file's text, unpacked, and what is wrong with it; empty where it lacks every mark of what is looked for."""
    data, problem = whole_text(str(path), LARGEST_DOCUMENT)
    if len(data) > LARGEST_DOCUMENT or not any(mark in data for mark in _MARKS):
        return "", problem and CUT_OFF
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return (_ESCAPE.sub("", text) if "\x1b[" in text else text), problem and CUT_OFF


def by_host(text: str) -> list[tuple[str | None, str]]:
    """What is of one host each, and its name; None where nobody says whose it is."""
    for split in (_by_speaker, _by_heading, _by_syslog):
        if len(parts := split(text)) > 0:
            return [(host, part) for host, said in parts for part in _reports(said)]
    return [(None, part) for part in _reports(text)]


def _by_speaker(text: str) -> list[tuple[str | None, str]]:
    first = [line for line in text[:_SAMPLE].splitlines() if line.strip()]
    if not first or sum(_SPEAKER.match(line) is not None for line in first) < _SPOKEN_SHARE * len(first):
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if any("NVRM: " in line and _SPEAKER.match(line) is None for line in lines):  # the kernel's own words
        return []
    said: dict[str | None, list[str]] = {}
    for line in lines:
        match = _SPEAKER.match(line)
        if match is not None and len(said) < _MOST_SPEAKERS:
            said.setdefault(match[1], []).append(line[match.end() :])
    return [(None if host is None or host.isdigit() else host, "\n".join(words)) for host, words in said.items()]


def _by_heading(text: str) -> list[tuple[str | None, str]]:
    heads = list(_RULED.finditer(text)) or list(_ANSIBLE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    said: dict[str | None, str] = {}
    for head, end in zip(heads, ends, strict=True) if heads else ():
        said[head[1]] = said.get(head[1], "") + text[head.end() : end]
    return list(said.items())


def _by_syslog(text: str) -> list[tuple[str | None, str]]:
    """The log of several hosts, as a central syslog keeps it; of one alone the text stays whole."""
    hosts = Counter(match[1] for match in _SYSLOG.finditer(text))
    if len(hosts) < 2:
        return [(host, text) for host in hosts]
    said: dict[str | None, list[str]] = {host: [] for host in hosts}
    for line in text.splitlines():
        if (match := _SYSLOG.match(line)) is not None:
            said[match[1]].append(line)
    return [(host, "\n".join(words)) for host, words in said.items()]


def _reports(text: str) -> Iterator[str]:
    """The outputs of nvidia-smi -q apart that are of other GPUs; of the same ones the text stays whole."""
    starts = [match.start() for match in _REPORT.finditer(text)]
    ends = [*starts[1:], len(text)]
    first: dict[frozenset[str], int] = {}
    last: dict[frozenset[str], int] = {}
    for start, end in zip(starts, ends, strict=True) if starts else ():
        if gpus := frozenset(_UUID.findall(text, start, end)):
            first.setdefault(gpus, start)
            last[gpus] = end
    if len(first) < 2 or any(one & other for one in first for other in first if one != other):
        yield text
        return
    for gpus, begin in first.items():
        yield text[begin : last[gpus]]
