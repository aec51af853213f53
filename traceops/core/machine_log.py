"""What the launcher sees of a machine while its ranks train: ``machine.<host>.jsonl``, a JSON list a line.

    ["g", GPU, uuid, name, highest MHz, power cap W]
    ["G", ms, GPU, MHz, reasons, W, °C, busy %, bytes used, [[pid, bytes], …], [[pid, busy %], …]]
    ["r", ms, rank, pid, CPU ms, ms in which its main thread waited for a core, major faults, core, ms in which it ran]
    ["h", ms, stolen CPU ms, CPU ms that its quota refused the cgroup, CPU ms in which its cores were wanted, CPU ms
     that the cgroup used]
    ["p", ms, pid, name, percent of a core since the last such look, core]    processes that are not of the run

Times are Unix ms; CPU, waiting, faults, stolen, refused, wanted and used time count up, over all cores of the machine
where they are its own. null is what the machine does not tell. Earlier logs do not have what was wanted and used.
"""

from __future__ import annotations

PREFIX, SUFFIX = "machine.", ".jsonl"


def machine_file(host: str) -> str:
    """The file's name in the run folder."""
    return f"{PREFIX}{host}{SUFFIX}"
