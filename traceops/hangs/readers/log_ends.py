"""Processes whose end a line tells without a rank: shells, DeepSpeed's launcher and Kubernetes."""

from __future__ import annotations

import re
import signal

_DEEPSPEED = re.compile(r"exits with return code = (-?\d{1,5})\s{0,8}$")
_WANDB = re.compile(r"\bsend_exit\(\):\d{1,5}\] handling exit code: (\d{1,3})\s{0,8}$")  # its own log
_KUBERNETES = re.compile(r"^\s{0,20}Exit Code:\s{1,20}(\d{1,3})\s{0,8}$")
# bash: 'Killed', 'Segmentation fault (core dumped)', '/x/run.sh: line 28:  8156 Killed    python3 main.py'.
_SHELL = re.compile(
    r"^(?:\S{1,500}: line \d{1,7}: {1,4}\d{1,10} )?(Killed|Segmentation fault|Aborted|Bus error|Illegal instruction)"
    r"(?: {1,4}\(core dumped\))?(?:\s{0,8}$| {4,40}(?!\( ?(?:while|until|for|sleep)\b)\S)"  # not its own loop
)
_TORCH = re.compile(
    r"^(SIG[A-Z]{3,4})\(\d{1,2}\), PID: \d{1,10}, Thread "
)  # TORCH_SHOW_CPP_STACKTRACES of a dying process
# The kernel's log: 'traps: python[1282398] general protection fault ip:…', 'python[1292493]: segfault at b000…'.
_KERNEL = re.compile(r"\b(?:python|pt_)[\w.]{0,16}\[\d{1,10}\]:? (?:general protection fault|segfault at) ")
_SIGNALS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS, "Illegal instruction": signal.SIGILL,
}  # fmt: skip
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
NEEDLES: tuple[bytes, ...] = (
    b"exits with return code = ", b"Exit Code:", b"handling exit code: ",
    b"), PID: ", b"general protection fault", b"segfault at",
    *(words.encode() for words in _SIGNALS),
)  # fmt: skip


def ended(body: str) -> str | None:
    """How a process ended, in words that `hangs/crash_kinds.py` knows; '' for a plain exit code, None of no end."""
    if "exits with return code" in body and (match := _DEEPSPEED.search(body)) is not None:
        return _told("DeepSpeed's launcher", int(match[1]))
    if "handling exit code: " in body and (match := _WANDB.search(body)) is not None:
        return _told("W&B", int(match[1]))
    if "Exit Code:" in body and (match := _KUBERNETES.match(body)) is not None:
        code = int(match[1])
        return _told("Kubernetes", 128 - code if code > 128 else code)
    if "), PID: " in body and (match := _TORCH.match(body)) is not None:
        number = getattr(signal, match[1], None)
        return None if number is None else _told("torch", -number)
    if ("general protection" in body or "segfault at" in body) and _KERNEL.search(body) is not None:
        return _told("the kernel", -signal.SIGSEGV)
    if (match := _SHELL.match(body)) is not None:
        return _told("the shell", -_SIGNALS[match[1]])
    return None


def _told(who: str, code: int) -> str | None:
    if code >= 0:
        return "" if code else None
    if -code == signal.SIGKILL:
        return f"{who} says that a process was killed: SIGKILL"
    if -code in _CRASHES:
        return f"{who} says that a process crashed: {signal.Signals(-code).name}"
    return f"{who} says that a process was ended: SIGTERM" if -code == signal.SIGTERM else ""
