"""What the launcher sees of a machine while its ranks train: ``machine.<host>.jsonl``, a JSON list a line.

    ["g", GPU, uuid, name, highest MHz, power cap W]
    ["G", ms, GPU, MHz, reasons, W, °C, busy %, bytes used, [[pid, bytes], …], [[pid, busy %], …]]
    ["r", ms, rank, pid, CPU ms, ms in which its main thread waited for a core, major faults, core, ms in which it ran]
    ["h", ms, stolen CPU ms, ms in which the cgroup was throttled]
    ["p", ms, pid, name, percent of a core since the last such look, core]    processes that are not of the run

Times are Unix ms; CPU, waiting, faults, stolen and throttled time count up. null is what the machine does not tell.
"""

from __future__ import annotations

PREFIX, SUFFIX = "machine.", ".jsonl"


def machine_file(host: str) -> str:
    """The file's name in the run folder."""
    return f"{PREFIX}{host}{SUFFIX}"
