"""The driver's lines in the log of nvidia-bug-report.sh, which has the kernel's log several times, of three boots."""

from __future__ import annotations

import re

_TITLE = "NVIDIA bug report log file"
_RULE = "____"
_JOURNAL = re.compile(r"\s{0,8}journalctl -b -(\d)")
_FILE = re.compile(r"\s{0,8}(?:\*\*\* )?/var/log/\S{1,80}\s{0,8}$")  # of any boots
_REBOOT = "-- Reboot --"


def is_bug_report(text: str) -> bool:
    return _TITLE in text


def driver_log(report: str) -> str:
    """The driver's lines, each once: those of earlier boots, and after a line as of journalctl those of this one.

    What only files of /var/log have is of an earlier boot where the journal of this one is there.
    """
    now: dict[str, str] = {}
    before: dict[str, str] = {}
    filed: dict[str, str] = {}
    section, journal = now, False
    for line in report.splitlines():
        if line.startswith(_RULE):
            section = now
        elif (match := _JOURNAL.match(line)) is not None:
            section = now if match[1] == "0" else before
            journal |= match[1] == "0"
        elif _FILE.match(line) is not None:
            section = filed
        elif "NVRM: " in line:
            section.setdefault(line[line.index("NVRM: ") :].strip(), line)
    (before if journal else now).update(
        {said: line for said, line in filed.items() if said not in now and said not in before}
    )
    earlier = [line for said, line in before.items() if said not in now]
    return "\n".join([*earlier, *([_REBOOT] if earlier else []), *now.values()])
