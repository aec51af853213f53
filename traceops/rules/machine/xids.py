"""TO-D002: errors that the NVIDIA driver wrote into the kernel's log."""

from __future__ import annotations

import re

from msgspec.structs import replace

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import Level, Look
from traceops.machine.xids import DriverFailure, DriverLog, Xid

XID = described("machine", "TO-D002", JudgedBy.DOCTOR)
RULES = (XID,)
_REPLACE = "take this GPU out of the job; if a reset (sudo nvidia-smi -r) or reboot does not help, have it replaced"
_RESET = "end what runs on it and: sudo nvidia-smi -r -i GPU (or reboot)"
_PROGRAM = "a program's mistake as a rule: run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer"

# Code: how bad, what it says, what to do [docs.nvidia.com/deploy/xid-errors]. Codes that are not here are notes.
_CODES: dict[int, tuple[Level, str, str]] = {
    13: ("note", "a kernel failed (illegal instruction or address)", _PROGRAM),
    31: ("note", "a kernel used memory it may not", _PROGRAM),
    32: ("note", "a broken command reached the GPU", _PROGRAM),
    43: ("note", "a program was stopped after its own error", _PROGRAM),
    45: ("note", "a program was ended and its work removed", "look for the error before it"),
    48: ("error", "memory error that could not be corrected", _REPLACE),
    61: ("warning", "the GPU's microcontroller stopped", _RESET),
    62: ("warning", "the GPU's microcontroller stopped", _RESET),
    63: ("warning", "a row or page of memory is to be replaced: needs a reset", _RESET),
    64: ("error", "a row or page of memory could not be replaced", _REPLACE),
    68: ("note", "the video unit failed", _PROGRAM),
    69: ("note", "a kernel failed (graphics engine class error)", _PROGRAM),
    74: ("error", "NVLink error", "nvidia-smi nvlink -s, nvidia-smi nvlink -e; reset the GPUs"),
    79: ("error", "the GPU fell off the bus", "power the host off and on; check power cables, riser and card"),
    92: ("warning", "many corrected memory errors", "watch it: nvidia-smi -q -d ECC"),
    94: ("warning", "memory error that hit one program only", _RESET),
    95: ("error", "memory error that hit all programs on the GPU", _RESET),
    109: ("warning", "the GPU did not switch between programs in time", "update the driver if it comes again"),
    110: ("warning", "security fault", _RESET),
    119: ("error", "the GPU's firmware (GSP) did not answer", f"{_RESET}; update the driver if it comes again"),
    120: ("error", "the GPU's firmware (GSP) failed", f"{_RESET}; update the driver if it comes again"),
    140: ("error", "memory error that was not recovered", _REPLACE),
    143: ("error", "the GPU did not start up", _REPLACE),
    **dict.fromkeys(range(144, 151), ("warning", "NVLink error", "check with nvidia-smi nvlink -s and -e")),
    155: ("note", "NVLink went down for a software reason", "look for the error before it"),
    156: ("note", "a resource of the GPU was retired", "watch it: nvidia-smi -q -d ECC"),
    158: ("warning", "GPU timeout", _RESET),
    160: ("warning", "a memory channel is to be repaired", _RESET),
    171: ("warning", "a memory error was corrected by a spare", _RESET),
}  # fmt: skip
_ACTION = 154  # says what the driver wants done: its text decides


def judge_xids(log: DriverLog, problem: str | None, labels: dict[str, str], host: str) -> tuple[Look, ...]:
    """What the kernel's log says of GPUs since boot. labels: ``GPU0`` by bus id. problem: why there is no log."""
    if problem:
        return (
            Look(host, "GPU", "Xid errors", "not known", "not_evaluated", f"the kernel's log cannot be read: {problem}",
                 "sudo dmesg | grep -i xid", rule=XID.id),
        )  # fmt: skip
    earlier, now = log.earlier, log.now
    looks = [*(_look(xid, labels, host) for xid in now.xids), *(_failure(one, labels, host) for one in now.failures)]
    if not now.xids:
        looks.append(Look(host, "GPU", "Xid errors", "none since boot", rule=XID.id))
    known = {(xid.bus_id, xid.code) for xid in now.xids}
    past = [_look(xid, labels, host) for xid in earlier.xids if (xid.bus_id, xid.code) not in known]
    past += [_failure(one, labels, host) for one in earlier.failures]
    return (*looks, *(replace(one, found=f"{one.found}, before the last boot", level="note") for one in past))


def _failure(failure: DriverFailure, labels: dict[str, str], host: str) -> Look:
    """What the driver could not do; of a GPU that nvidia-smi lists it can by now."""
    facts = {"bus_id": failure.bus_id, "text": failure.text}
    why = f"the kernel's log says: {failure.text}"
    if failure.kind == "versions":
        level: Level = "note" if labels else "error"
        found = "the kernel's part of the driver and a program's library are of different versions"
        advice = "after an update of the driver reboot, or load its modules again; in a container update the image"
        return Look(host, "GPU", "driver", found, level, why, advice, facts, rule=XID.id)
    label = ", ".join(labels.values()) if failure.bus_id is None else labels.get(failure.bus_id)
    which = "the GPU" if failure.bus_id is not None else "GPUs"
    where = label or failure.bus_id
    found = f"{f'{where}: ' if failure.bus_id is not None else ''}the driver could not start {which}"
    advice = "power the host off and on; if it comes again, update the driver or have the GPU looked at"
    if label:
        listed = "lists it by now" if failure.bus_id is not None else f"lists {label} by now"
        found, advice = f"{found}, and {listed}", "nothing, unless it comes again or a GPU is missing"
    level = "note" if label else "error"
    return Look(host, "GPU", "driver", found, level, why, advice, facts, rule=XID.id)


def _look(xid: Xid, labels: dict[str, str], host: str) -> Look:
    level, meaning, advice = _CODES.get(xid.code, ("note", "see the driver's list of Xids", "nvidia-bug-report.sh"))
    if xid.code == _ACTION:
        wanted = re.search(r"Reset|Reboot|Drain", xid.text.rpartition(" to ")[2]) is not None
        level, meaning, advice = ("error" if wanted else "note", "the driver wants something done", _RESET)
    if xid.code in range(144, 151) and re.search(r"\bFatal\b", xid.text):
        level = "error"
    where = labels.get(xid.bus_id or "", xid.bus_id or "a GPU")
    times = f", {xid.count} times" if xid.count > 1 else ""
    return Look(
        host, "GPU", f"Xid {xid.code}", f"{where}: {meaning}{times}", level, f"the kernel's log says: {xid.text}"
        if xid.text else "the kernel's log says so", advice,
        {"xid": xid.code, "count": xid.count, "bus_id": xid.bus_id, "text": xid.text}, rule=XID.id,
    )  # fmt: skip
