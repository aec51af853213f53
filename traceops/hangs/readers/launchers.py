"""How launchers, shells, schedulers and containers say that a process ended, with a rank or without."""

from __future__ import annotations

import re
import signal

from msgspec import Struct

from traceops.core.claims import reason
from traceops.core.errors import reported_codes, signal_name
from traceops.hangs.readers.steps import seconds_of
from traceops.words.catalogue import rows

_WORDS = {
    "killed": signal.SIGKILL, "segmentation fault": signal.SIGSEGV, "aborted": signal.SIGABRT, "abort": signal.SIGABRT,
    "bus error": signal.SIGBUS, "illegal instruction": signal.SIGILL, "illegal hardware instruction": signal.SIGILL,
    # in Chinese
    "已杀死": signal.SIGKILL, "段错误": signal.SIGSEGV, "已放弃": signal.SIGABRT, "已中止": signal.SIGABRT,
    "总线错误": signal.SIGBUS, "非法指令": signal.SIGILL,
}  # fmt: skip
# A job of an interactive shell is anything; of these something trains or serves.
_PROGRAMS = r"(?=.{0,400}\b(?:python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|mpiexec|vllm|make|bash|sh)\b)"
# What a script starts beside a training and kills at its end: loops of its own, and programs that only look on.
_BESIDE = (
    r"\( ?(?:while|until|for|sleep)\b"
    r"|(?:\S{1,100}/)?(?:sleep|tail|watch|top|htop|nvtop|nvitop|gpustat|nvidia-smi|rocm-smi|dcgmi|dstat|vmstat|iostat|mpstat"
    r"|sar|pidstat|dmesg|tensorboard|ssh|inotifywait)\b"
)
# How each program words it: a word in each such line, and a pattern with groups code, signal (its number) or name.
# '^' and a bound on each repetition: a hostile line costs what a plain one of its length costs.
_WAYS = tuple((who, needle, re.compile(pattern)) for who, needle, pattern in rows("launchers.ways"))
# bash: 'Killed', 'Segmentation fault (core dumped)', '/x/run.sh: line 28:  8156 Killed    python3 main.py'; of a job
# '[1]+  Killed                  python train.py'; zsh: 'zsh: killed     python train.py'.
_SHELLS = (
    re.compile(
        r"(?:\S{1,500}[:：] ?(?:line|行|第) ?\d{1,7} ?行?[:：] {0,4}\d{1,10} )?"
        r"(?P<name>Killed|Segmentation fault|Aborted|Bus error|Illegal instruction"
        r"|已杀死|段错误|已放弃|已中止|总线错误|非法指令)"
        r"(?: {0,4}[(（](?:core dumped|核心已转储|吐核)[)）])?(?:\s{0,8}$| {4,40}(?!" + _BESIDE + r")\S)"
    ),
    re.compile(
        r"(?:\[\d{1,4}\]\s{0,2}[+-]?\s{1,8}(?:\d{1,10} )?|zsh: )"
        r"(?P<name>[Kk]illed|[Ss]egmentation fault|[Aa]bort(?:ed)?|[Bb]us error|[Ii]llegal (?:hardware )?instruction)"
        r"(?: {1,4}\(core dumped\))? {1,40}" + _PROGRAMS
    ),
)
_SHELL_WORDS = (
    "Killed", "killed", "egmentation fault", "Aborted", "abort", "us error", "llegal instruction",
    "llegal hardware instruction", "已杀死", "段错误", "已放弃", "已中止", "总线错误", "非法指令",
)  # fmt: skip
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_MOST_SHOWN = 120  # characters of a line
IN_PASSING = "abort"  # in too many lines to look for blocks with it
NEEDLES: tuple[bytes, ...] = tuple(
    words.encode() for words in (*(needle for _, needle, _ in _WAYS), *_SHELL_WORDS) if words != IN_PASSING
)


def ended(body: str) -> str | None:
    """How a process ended, in words that `hangs/crashes.py` knows; '' for a plain exit code, None of no end."""
    for who, needle, pattern in _WAYS:
        if needle in body and (match := pattern.match(body)) is not None:
            return _told(who, _code(match))
    if any(map(body.__contains__, _SHELL_WORDS)):
        for pattern in _SHELLS:
            if (match := pattern.match(body)) is not None:
                return _told("the shell", _code(match))
    return None


def last_words(body: str) -> str:
    """The end of a line, without a word that is cut in two."""
    said = body.strip()
    return said if len(said) <= _MOST_SHOWN else f"… {said[-_MOST_SHOWN:].partition(' ')[2].strip()}"


def in_short(body: str) -> str:
    """A line; of a long one the end, before which the whole command stands."""
    return body if len(body) <= 2 * _MOST_SHOWN else last_words(body)


def _code(match: re.Match[str]) -> int:
    """The exit code as Python has it: negative for a signal, which a shell adds to 128."""
    groups = match.groupdict()
    if groups.get("segv"):
        return -signal.SIGSEGV
    if groups.get("signal"):
        return -int(groups["signal"])
    if name := groups.get("name"):
        found = _WORDS.get(name.lower()) or getattr(signal, name, None)
        return -found if isinstance(found, signal.Signals) else 1
    return _unshelled(int(groups["code"]))


def _told(who: str, code: int) -> str | None:
    if code == 0 or code == -signal.SIGINT:  # somebody stopped it
        return None
    if code == -signal.SIGKILL:
        return reason("hangs", "process_killed", who=who)
    if -code in _CRASHES:
        return reason("hangs", "process_crashed", who=who, signal=signal.Signals(-code).name)
    return reason("hangs", "process_ended", who=who) if code == -signal.SIGTERM else ""


_REPORTED_RANK = re.compile(r"^\s{0,8}rank\s{0,8}: \d{1,7} \(local_rank: \d{1,7}\)\s{0,8}$")
_REPORTED_TIME = re.compile(r"\s{0,8}time\s{0,8}: (\d{4})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)\s{0,8}$")
_PID = re.compile(r"\(pid: (\d{1,10})\)")
# mpirun's report, which has a line for each: 'Process name: [[32288,1],0]'.
_PROCESS = re.compile(r"\s{0,8}Process name: \[\[\d{1,10},\d{1,10}\],(\d{1,7})\]\s{0,8}$")
_SIGNALLED = 128  # of a mere exit code all ranks' own lines, which mpirun passes on, tell more
_ITS_CODE = re.compile(r"\s{0,8}Exit code: {1,8}(\d{1,5})\s{0,8}$")
_SRUN_CODE = re.compile(r"Exited with exit code (\d{1,5})")
# Slurm's words for a signal, as strsignal has them.
_SIGNALS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM, "Bus error": signal.SIGBUS, "Out Of Memory": signal.SIGKILL,
    "Floating point exception": signal.SIGFPE, "Illegal instruction": signal.SIGILL,
}  # fmt: skip
_MOST_TASKS = 1 << 16


class Exit(Struct, frozen=True):
    """A process of `ranks` ended. sure: the numbers are ranks; else a launcher's count that may differ. when: seconds
    by the clock of its host, where the launcher says so."""

    line: int
    ranks: tuple[int, ...]
    code: int
    text: str
    root: bool = False
    sure: bool = True
    pid: int | None = None
    when: int | None = None


class Exits:
    """Reads a launcher's lines; the reports of torchrun and mpirun take two lines a rank."""

    def __init__(self) -> None:
        self._in_root = False
        self._rank_line: str | None = None
        self.rank: int | None = None  # that torchrun's report is at
        self._when: int | None = None  # torchrun's report on a rank begins with its time
        self._process: re.Match[str] | None = None  # whose exit code is on the next line

    @property
    def is_open(self) -> bool:
        return self._rank_line is not None or self._process is not None

    def take(self, number: int, body: str) -> Exit | None:
        if body.startswith(("Failures:", "=====")):
            self._in_root, self.rank, self._when = False, None, None
        elif body.startswith("Root Cause"):
            self._in_root = True
        if "time " in body and (told := _REPORTED_TIME.match(body)) is not None:
            self._when = seconds_of(*map(int, told.groups()))
        if self._rank_line is not None:
            line, self._rank_line = self._rank_line, None
            return self._reported(number, f"{line}\n{body}")
        if "local_rank: " in body and _REPORTED_RANK.match(body) is not None:
            self._rank_line = body
            return None
        process = self._process
        self._process = _PROCESS.match(body) if "Process name: " in body else None
        if process is not None and (its := _ITS_CODE.match(body)) is not None and int(its[1]) > _SIGNALLED:
            code = _unshelled(int(its[1]))
            return Exit(number, (int(process[1]),), code, reason("hangs", "mpirun", rank=process[1], code=its[1]))
        return _failed(number, body)

    def _reported(self, number: int, lines: str) -> Exit | None:
        pid = _PID.search(lines)
        for rank, code in reported_codes(lines).items():
            self.rank = rank
            text = f"torchrun: rank {rank} {_ended(code)}{' (root cause)' if self._in_root else ''}"
            known = None if pid is None else int(pid[1])
            return Exit(number, (rank,), code, text, self._in_root, pid=known, when=self._when)
        return None


class _Emitter(Struct, frozen=True):
    """A launcher's line on the end of processes. word: in each such line. Groups: ranks ('3', '0-2,5'), code, signal
    (its number), name (SIGKILL), words (Slurm's), pid. text: instead of the line itself. sure: it counts the ranks of
    the job. by_shell: 128 is added to a signal."""

    word: str
    pattern: re.Pattern[str]
    text: str = "{line}"
    root: bool = False
    sure: bool = True
    by_shell: bool = False


_LOCAL = "torchrun: local rank {rank} {ended}"
_EMITTERS = (
    _Emitter(  # torchrun; the line may be cut behind the rank
        "exitcode: ",
        re.compile(
            r"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<ranks>\d{1,7})"
            r"(?: \(pid: (?P<pid>\d{1,10})\)|\s{0,8}$)"
        ),
        _LOCAL, root=True, sure=False,
    ),
    _Emitter(  # that of torch 1.9
        "exitcode ",
        re.compile(
            r"^Child process (?P<pid>\d{1,10}) \(local_rank (?P<ranks>\d{1,7})\) FAILED"
            r" \(exitcode (?P<code>-?\d{1,5})\)"
        ),
        _LOCAL, root=True, sure=False,
    ),
    _Emitter(  # our own: below srun its tasks are nodes
        " first, exit code ",
        re.compile(
            r"traceops: rank (?P<ranks>\d{1,7})(?: on [^\s:]{1,200})? (?:failed|ended) first,"
            r" exit code (?P<code>-?\d{1,3})\b"
        ),
        "traceops: rank {rank} {ended} first", root=True,
    ),
    _Emitter(
        "srun: error: ",
        re.compile(r"srun: error: [^\s:]{1,200}: tasks? (?P<ranks>[\d,\-]{1,2000}): (?P<words>.{1,200})"),
        sure=False, by_shell=True,
    ),
    _Emitter(  # Open MPI
        "exited on signal",
        re.compile(r"noticed that process rank (?P<ranks>\d{1,7}) .{0,200}?exited on signal (?P<signal>\d{1,3})"),
        root=True,
    ),
    _Emitter(  # Cray's mpiexec
        ": rank ",
        re.compile(
            r"^[^\s:]{1,200}: rank (?P<ranks>\d{1,7})"
            r" (?:died from signal (?P<signal>\d{1,3})|exited with code (?P<code>\d{1,3}))"
        ),
        by_shell=True,
    ),
    _Emitter(  # Composer's launcher
        " crashed with exit",
        re.compile(r"\bRank (?P<ranks>\d{1,7}) crashed with exit code (?P<code>-?\d{1,3})\b"),
        by_shell=True,
    ),
    _Emitter(
        "Global rank ",
        re.compile(r"^Global rank (?P<ranks>\d{1,7}) \(PID \d{1,10}\) exited with code (?P<code>-?\d{1,3})\b"),
        by_shell=True,
    ),
    _Emitter(  # Horovod's
        " exit with status code ",
        re.compile(r"\bProcess (?P<ranks>\d{1,7}) exit with status code (?P<code>\d{1,3})\."),
        by_shell=True,
    ),
    _Emitter(  # torch.multiprocessing
        "terminated with ",
        re.compile(
            r"process (?P<ranks>\d{1,7}) terminated with"
            r" (?:signal (?P<name>SIG[A-Z]{1,10})|exit code (?P<code>\d{1,5}))"
        ),
        sure=False,
    ),
)  # fmt: skip


def _failed(number: int, body: str) -> Exit | None:
    for emitter in _EMITTERS:
        if emitter.word not in body or (match := emitter.pattern.search(body)) is None:
            continue
        said = match.groupdict()
        code = _code_in(said, by_shell=emitter.by_shell)
        if not code and not emitter.root:
            return None
        text = emitter.text.format(line=match[0], rank=said["ranks"], ended=_ended(code))
        pid = int(said["pid"]) if said.get("pid") else None
        return Exit(number, _tasks(said["ranks"]), code, text, emitter.root, emitter.sure, pid=pid)
    return None


def _code_in(said: dict[str, str | None], *, by_shell: bool) -> int:
    """The exit code as Python has it; 0 where a line tells of none."""
    if words := said.get("words"):
        if (exited := _SRUN_CODE.match(words)) is None:
            return next((-number for name, number in _SIGNALS.items() if words.startswith(name)), 0)
        said = {"code": exited[1]}
    if name := said.get("name"):
        return -int(getattr(signal, name, 0))
    if number := said.get("signal"):
        return -int(number)
    code = int(said["code"] or 0)
    return _unshelled(code) if by_shell else code


def _unshelled(code: int) -> int:
    """A shell or a wrapper adds 128 to a signal."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _tasks(text: str) -> tuple[int, ...]:
    """'0-2,5' as numbers."""
    tasks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal() and len(first) < 8 and (not dash or (last.isdecimal() and len(last) < 8)):
            end = int(last) if dash else int(first)
            tasks += range(int(first), min(end, int(first) + _MOST_TASKS - len(tasks)) + 1)
    return tuple(tasks[:_MOST_TASKS])


def _ended(code: int) -> str:
    if code < 0:
        return reason("hangs", "killed_by", signal=signal_name(-code))
    return reason("hangs", "exit_code", code=code)
