"""What stands in front of a line: known prefixes of collectors and launchers, and those that the log itself shows."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from traceops.core.text import by_shape
from traceops.hangs.readers.tracebacks import MILD

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_BY_UNIT = r"[\w.-]{1,253} [\w./@-]{1,60}\[\d{1,10}\]: "  # journald and syslog; the kernel has no number
# Any collector's time, and what of torchrun's report follows it: a time before other lines may be the program's own.
_ANY_TIME = (
    r"(?:\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,100} \S{1,60}:)(?: ?\|)? "
)
_OF_REPORT = (
    r"(?= {2}(?:time|host|rank|exitcode|error_file|traceback) {0,6}: |={20}|-{20}|Failures:|Root Cause \("
    r"|\[\d{1,7}\]:\s{0,4}$)"
)
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:> ?){1,8}",  # the marks of an e-mail
        # docker logs -t, kubectl logs --timestamps; containerd's files, journalctl -o short-iso, aws logs tail
        rf"{_TIME} (?:std(?:out|err) [FP] |{_BY_UNIT}|[\w.$-]{{1,100}}/[\w./$\[\]-]{{1,200}} )?",
        rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {_BY_UNIT}",
        rf"{_ANY_TIME}{_OF_REPORT}",
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?$",  # of a viewer that shows the time above the line
        r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z\] ?(?! {0,20}[\da-f]{8} )",  # Buildkite, GitHub's runners
        r"\[pod/[\w.-]{1,253}/[\w.-]{1,63}\] ",  # kubectl logs --prefix
        # stern, pdsh, kubectl in a loop; not NCCL's own host:pid:tid
        r"(?:[\w.-]{1,200}-)?(?:worker|master|launcher|chief|node)-\d{1,6}(?:: ?(?!\d{1,10}:\d{1,10} \[)|  ?\| "
        r"| (?:pytorch|trainer|train|main|worker|master|launcher|app) )",
        r"[\w.-]{1,100}-\d{1,4} {1,20}\| ",  # docker compose
        # Ray; vLLM's '(VllmWorker TP0 pid=3)'
        r"\((?:raylet|[A-Za-z_][\w.<>:]{0,80}(?: [\w=]{1,20})? pid=\d{1,10}|pid=\d{1,10})"
        r"(?:, ip=[\w.:]{1,60})?\) ?",
        r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[\d{1,9},)",  # mpirun -timestamp-output
        r"\[\d{1,10}\] (?=\[rank\d)",  # line numbers of a viewer
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d{1,3}(?:\.\d{1,3}){3} \[\d{1,6}\] ",  # xla_dist, of TPU hosts
        # Determined, of a container; the rank, if there is one, follows
        r"(?:<[^>]{0,40}> {1,20})?\[\d{4}-\d\d-\d\d[T ][\d:.]{8,18}Z?\] [0-9a-f]{8} (?:\|\| ?)?(?=\s|\S)",
        r"std(?:err|out): ?",  # tests of accelerate and transformers
    )
)
# Of these prefixes those that tell processes apart, behind a time.
_LABELS = re.compile(
    rf"(?:{_TIME} )?(\[pod/[\w.-]{{1,253}}/[\w.-]{{1,63}}\] |[\w.-]{{1,100}}-\d{{1,4}} {{1,20}}\| "
    r"|\([A-Za-z_][\w.<>:]{0,80}(?: [\w=]{1,20})? pid=\d{1,10}(?:, ip=[\w.:]{1,60})?\) ?)"
)
# A message follows tqdm's bar in the same line: '  5%|▌   | 20/400 [00:10<03:10,  2.00it/s][ERROR] …'.
_BAR = re.compile(r"(?:[^|]{0,120}: {0,4})?\s{0,4}\d{1,3}%\|[^|]{0,400}\| {0,4}\d[^\[\]]{0,60}\[[^\[\]]{0,400}\] ?")
# A line that somebody stressed in Markdown: '**Killed**'.
_STRESSED = re.compile(r"(\*\*|`{1,3})(?=[^\s*`])([^*`]{1,2000})\1\s{0,8}$")
_REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\].{0,300}$")  # Ray, at the end of a line
_ENTITY = re.compile(r"&(?:quot|lt|gt|amp|apos|nbsp|#\d{2,5}|#x[0-9a-fA-F]{2,4});")
_COLOUR = re.compile(r"(?:\^\[)?\[[\d;]{0,19}[mK]")  # whose escape is written out, or lost
_QUOTES = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
_MOST = 4
# pdsh, clush and DeepSpeed's launcher: whatever the host is called. A number in it tells it from 'INFO: '.
_HOST = re.compile(r"(?=[\w.-]{0,99}\d)[A-Za-z][\w.-]{0,99}: ?(?!\d{1,10}:\d{1,10} \[)")
_HOST_MARK = re.compile(r"\w[.-]\w")
_HOST_SHARE = 0.9
_FEWEST = 4  # lines


def host_prefix(lines: Sequence[str]) -> re.Pattern[str] | None:
    """The names of hosts in front of lines, where nearly all have one; None elsewhere."""
    said = [line for line in lines if line.strip()]
    names = [match[0] for line in said if (match := _HOST.match(line)) is not None]
    if len(said) < _FEWEST:  # of a few lines all have to have one, which looks like a host's: 'gpu-node17: '
        is_host = len(set(names)) == 1 and len(names) == len(said) and _HOST_MARK.search(names[0]) is not None
    else:
        is_host = len(names) >= _HOST_SHARE * len(said)
    return re.compile("^" + _HOST.pattern) if is_host else None


def plain(line: str) -> str:
    """The line as the program wrote it, where a page, a chat or a terminal changed its characters."""
    line = line.rstrip()
    if "&" in line and _ENTITY.search(line) is not None:
        line = html.unescape(line)
    if "\xa0" in line:
        line = line.replace("\xa0", " ")
    if "[0m" in line or "^[[" in line:
        line = _COLOUR.sub("", line)
    return line.translate(_QUOTES) if "File \u201c" in line else line


def label_of(line: str) -> str:
    """Which pod, service or process of Ray a line is of, where its prefix names one; '' elsewhere."""
    labels = _LABELS.match(line)
    return "" if labels is None else labels[1]


@by_shape
def _behind_prefixes(line: str) -> int:
    """Where the line begins as the program wrote it."""
    start = 0
    for _ in range(_MOST):
        match = next(filter(None, (prefix.match(line, start) for prefix in _PREFIXES)), None)
        if match is None or match.end() == start:
            break
        start = match.end()
    if "%|" in line and (bar := _BAR.match(line, start)) is not None:
        start = bar.end()
    return start


def without_prefixes(line: str) -> str:
    """The line as the program wrote it, with the rank's own prefix if it has one."""
    start = _behind_prefixes(line)
    if "[repeated " in line:
        line = _REPEATED.sub("", line)
    if line.startswith("**\\*", start):  # '***' as Markdown escapes it
        line = f"{line[:start]}***{line[start + 4 :]}"
    stressed = _STRESSED.match(line, start) if line[start : start + 1] in ("*", "`") else None
    return line[start:] if stressed is None else stressed[2]


_BEGINS = "Traceback (most recent call last)"
_FRAME = re.compile(r" {2}File \"")
_LONGEST = 200  # characters
_MOST_LEARNED = 8
_PARTS = re.compile(r"\d{1,200}|\s{1,200}|[^\d\s]{1,200}")
_SHARE = 0.9  # of the lines
_TOKEN = re.compile(r"\d{1,200}|[A-Za-z_]{1,200}|.")
_MOST_TOKENS = 80
# What a program writes at the left edge, or two spaces from it.
_AT_EDGE = re.compile(
    r"Traceback \(most recent| {2}File \"|Fatal Python error: |(?:Current t|T)hread 0x|={10}|-{10}|Failures:\s{0,8}$"
    r"|\[rank\d{1,7}\]:"
)
# Who says a line, which is read by itself: [rank3]:, [default3]:, [1,3]<stderr>:, 'Rank 3: ', '3: '.
_SPEAKER = re.compile(
    r"\[(?:rank|RANK)[ :=]{0,2}\d|\[[A-Za-z][A-Za-z_.-]{0,40}?\d{1,7}\]:|\[\d{1,9},|\b(?:Rank|RANK) \d|^ {0,6}\d{1,7}: "
)


class LearnedPrefixes:
    """Learns a prefix where a traceback's first line and the frame behind it have it; its numbers may differ."""

    def __init__(self) -> None:
        self._perhaps: re.Pattern[str] | None = None
        self._known: list[re.Pattern[str]] = []

    def without(self, line: str) -> str:
        """The line without a prefix that is known."""
        if self._perhaps is not None:
            perhaps, self._perhaps = self._perhaps, None
            match = perhaps.match(line)
            if match is not None and _FRAME.match(line, match.end()) is not None and len(self._known) < _MOST_LEARNED:
                self._known.append(perhaps)
        for known in self._known:
            if (match := known.match(line)) is not None:
                return line[match.end() :]
        if _BEGINS in line and (before := line[: line.index(_BEGINS)]).strip():
            self._perhaps = _pattern(before)
        return line


def _pattern(before: str) -> re.Pattern[str] | None:
    if len(before) > _LONGEST or _SPEAKER.search(before) is not None or MILD.search(before) is not None:
        return None  # of a warning the level says more than the traceback behind it
    parts = _PARTS.findall(before)
    made = [r"\d{1,20}" if part.isdecimal() else re.escape(part) for part in parts]
    for at, part in enumerate(parts[:-1]):  # spaces at its end are the program's own, from which a frame is known
        if part.isspace():
            made[at] = r"\s{1,8}" if at else r"\s{0,8}"
    return re.compile("".join(made))


def _shared_tokens(tokens: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The kinds of tokens that nearly all lines begin with, and the tokens of the lines that begin so."""
    made: list[str] = []
    alike = tokens
    while len(made) < _MOST_TOKENS:
        at = len(made)
        counts = Counter(_kind(own[at]) for own in alike if at < len(own))
        most, count = counts.most_common(1)[0] if counts else ("", 0)
        if count < _SHARE * len(tokens):
            break
        alike = [own for own in alike if at < len(own) and _kind(own[at]) == most]
        made.append(most)
    return made, alike


def common_prefix(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What nearly all lines begin with but for its numbers, where what follows it shows that the program begins there.
    A label that says whose a line is ends it. None where there is no such thing."""
    said = [line for line in lines if line.strip()]
    if len(said) < _FEWEST:
        return None
    made, alike = _shared_tokens([_TOKEN.findall(line.lstrip(" ")[:_LONGEST]) for line in said])
    if not made:
        return None
    speaker = _SPEAKER.search("".join(alike[0][: len(made)]))
    while speaker is not None and made and len("".join(alike[0][: len(made)])) > speaker.start():
        made.pop()
    if not made:
        return None
    end = "(?: |$)" if made[-1] == " " else made[-1]
    # Spaces in a row as one part, or each way to share them out is tried.
    runs = ((one, len(list(several))) for one, several in groupby(made[:-1]))
    spaced = "".join(f" {{{count},{8 * count}}}" if one == " " else one * count for one, count in runs)
    prefix = re.compile("^ {0,12}" + spaced + end)
    shown = any((match := prefix.match(line)) is not None and _AT_EDGE.match(line, match.end()) for line in said)
    return prefix if shown else None


def _kind(token: str) -> str:
    if token.isdecimal():
        return r"\d{1,20}"
    return token if token == " " else re.escape(token)
