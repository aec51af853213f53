"""A checkup in words: the verdict, machines, changes and sizes as each renderer writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, get_args

from traceops.core.claims import first_phrase, phrases
from traceops.core.findings import Finding, Severity
from traceops.core.rank_text import ranks_text
from traceops.core.units import digits_text, message_text, rate_text
from traceops.doctor.document import trial_text
from traceops.doctor.model import BAD, Checkup, EnvironmentChange, Remedy, Trial
from traceops.fabric.model import Machine, Measured, Quote
from traceops.fabric.nccl import Benchmark, NcclLog
from traceops.fabric.talks import way_text
from traceops.fabric.to_json import alike_connections, alike_machines
from traceops.machine.look import Level, Look
from traceops.render.doctor.rows import Attempt, change_text, measured_with
from traceops.render.document import Headline
from traceops.render.report.fabric_html import nccl_sentence
from traceops.render.topology.figure import count, description
from traceops.render.topology.shape import shape_of
from traceops.report.hang_text import inspector_text
from traceops.rules.fabric.benchmarks import SLOW_TEST, alone_text, benchmark_text
from traceops.rules.fabric.graph import BELOW_LINKS
from traceops.rules.machine.judge import COMES_AND_GOES, RULES, wrong_looks
from traceops.words.catalogue import texts

_WORST_FIRST: dict[Level, int] = {"error": 0, "warning": 1, "note": 2, "not_evaluated": 3, "ok": 4}
if set(_WORST_FIRST) != set(get_args(Level)):
    raise RuntimeError("render/doctor/text.py and the doctor disagree on the levels")
_OF_THE_MACHINE = {rule.id for rule in RULES}
_MOST_NAMES = 6
WORDS = texts("views", "doctor")
say = partial(first_phrase, "views", "doctor")
_TELLS_RATE = 1 << 20  # bytes: below it a message tells of latency
_NUMBERED = re.compile(r"\w*\d[\w.:-]*")  # numbers, addresses, hosts, names of files


def doctor_verdict(checkup: Checkup) -> Headline:
    """What to act on first: what keeps GPUs from working together, what makes them slow, then what looks wrong."""
    if checkup.fallback is not None:
        return _on_one_device(checkup)
    if checkup.settings is not None:
        return _with_settings(checkup, checkup.settings)
    findings = [found for found in other_findings(checkup) if found.severity != "info"]
    broken, looks = broken_trials(checkup), wrong_enough(checkup)
    if not findings and not broken and not looks:
        return _healthy(checkup)
    passed = sum(look.rule == COMES_AND_GOES.id for look in looks) if broken else 0
    error = any(one.severity == "error" for one in findings) or any(look.level == "error" for look in looks)
    if broken:
        sentence = " ".join([f"{trial_text(broken[0], checkup.hosts)}.", *([WORDS["came_back"]] if passed else [])])
    else:
        sentence = findings[0].message if findings else f"{look_text(looks[0])}."
    rest = len(findings) + len(broken) + len(looks) - 1 - passed
    level: Severity = "error" if error or (broken and not passed) else "warning"
    return Headline(level, " ".join([sentence, *phrases("views", "doctor", "rest", rest=rest or None)]))


def heading(checkup: Checkup) -> str:
    """The hosts, or the files where nothing says whose they are."""
    files = [PurePath(source).name for machine in checkup.machines for source in machine.sources]
    names = list(dict.fromkeys(checkup.hosts or files))
    return _listed(names) or "saved files"


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return say("names", names=names[:_MOST_NAMES], more_names=max(len(names) - _MOST_NAMES, 0) or None)


def looks_not_ok(checkup: Checkup) -> list[Look]:
    """What wants attention, the worst first; what could not be looked at comes last. Of a variable whose cost was
    measured, what is usually said of it is left out."""
    return sorted(wrong_looks(checkup.looks), key=lambda look: _WORST_FIRST[look.level])


def wrong_enough(checkup: Checkup) -> list[Look]:
    """Looks that are errors or warnings, the worst first."""
    return [look for look in looks_not_ok(checkup) if look.level in ("error", "warning")]


def other_findings(checkup: Checkup) -> list[Finding]:
    """Findings that no look and no test shows already."""
    return [found for found in checkup.findings if found.rule not in _OF_THE_MACHINE]


def broken_trials(checkup: Checkup) -> list[Trial]:
    """Trials with the environment as it is that came out wrong, failed or hung."""
    return [trial for trial in checkup.trials if trial.as_it_is and trial.outcome in BAD]


def look_text(look: Look) -> str:
    """'/dev/shm: 64 MB; too small for NCCL' without its advice."""
    why = f"; {look.why.rstrip('.')}" if look.why else ""
    return f"{look.what}: {look.found}{why}"


def look_finding(look: Look, severity: Severity, several: bool) -> Finding:
    """A look as findings are shown; several: with its host."""
    on = f" ({look.host})" if several else ""
    why = f"; {look.why}" if look.why else ""
    return Finding(
        look.rule, severity, "high", f"{look.area}: {look.what}{on}", f"{look.found}{why}", (), advice=look.advice
    )


def machine_lines(machines: Sequence[Machine]) -> list[tuple[str, str]]:
    """For each make of machine what it is, and what joins its GPUs."""
    lines = []
    for machine, alike in alike_machines(machines):
        names = sorted({gpu.name for gpu in machine.gpus if gpu.name})
        source = ", ".join(PurePath(source).name for source in machine.sources[:2])
        hosts = f"{machine.host or source or 'this machine'}{f' and {len(alike)} more' if alike else ''}"
        gpus = f"{len(machine.gpus)} × {', '.join(names)}" if names else count(machine.gpus, "GPU")
        what = f"{hosts}: {gpus if machine.gpus else 'no GPU'}"
        lines.append((what, description(machine, shape_of(machine))))
    return lines


def read_text(checkup: Checkup) -> str:
    """Which saved files the checkup rests on, as a sentence; empty where this machine was looked at."""
    if checkup.seconds:
        return ""
    logs = checkup.log.files if checkup.log is not None else ()
    topologies = [source for machine in checkup.machines for source in machine.sources if source not in logs]
    references = [reference.source for reference in checkup.references if reference.source]
    tests = [benchmark.quote.path for benchmark in checkup.benchmarks]
    kinds = {"topology": topologies, "log": logs, "tests": tests, "references": references}
    parts = [
        say(f"file.{kind}", names=_listed(list(dict.fromkeys(PurePath(file).name for file in files))))
        for kind, files in kinds.items()
        if files
    ]
    parts += [] if checkup.inspector is None else [inspector_text(checkup.inspector)]
    return say("read", files=parts)


def log_text(log: NcclLog) -> str:
    """What NCCL made and which ways it took: 'P2P/CUMEM for 12 connections inside hosts', each one way."""
    ways: Counter[tuple[str, str]] = Counter()
    for kind in alike_connections(log.communicators):
        way = way_text(kind.transport, kind.detail)
        inside = kind.within_host
        where = "" if inside is None else " inside hosts" if inside else " between hosts"
        ways[way + ("/GDRDMA" if kind.gdr else ""), where] += kind.count
    took = [
        f"{way} for {number} connection{'' if number == 1 else 's'}{where}"
        for (way, where), number in ways.most_common(_MOST_NAMES)
    ]
    return " ".join([nccl_sentence(log), *phrases("views", "doctor", "ways", ways=took)])


def nccl_warnings(log: NcclLog) -> list[Quote]:
    """What NCCL warned of, once whatever host, process and addresses it names. Not what is normal on many machines, nor
    what a rule says in words of its own."""
    normal = {(event.quote.path, event.quote.line) for event in log.network_events if not event.failed}
    judged = {warning_text(remark.quote) for remark in log.host_remarks}
    told: dict[str, Quote] = {}
    for quote in log.warnings:
        if (quote.path, quote.line) not in normal and warning_text(quote) not in judged:
            told.setdefault(_NUMBERED.sub("#", warning_text(quote)), quote)
    return list(told.values())


def warning_text(quote: Quote) -> str:
    """The message without who says it."""
    return quote.text.partition("NCCL WARN ")[2].strip()


def with_text(change: EnvironmentChange) -> str:
    """'with NCCL_P2P_DISABLE=1 and without NCCL_ALGO', as a sentence goes on."""
    return f"with {change_text(change)}" if change.set else change_text(change)


def fallback_lines(checkup: Checkup, document: str = "doctor.json") -> list[str]:
    """How to train all the same, where no setting works. document: the checkup as JSON."""
    if checkup.fallback is None:
        return []
    device = "GPU" if checkup.backend == "nccl" else "process"
    return [
        say("fallback", device=device, batches=checkup.fallback),
        say("fallback_command", document=document if checkup.settings is not None else None),
    ]


def largest(measured: Sequence[Measured]) -> list[Measured]:
    """Of each operation over most devices the largest message; of a pair's operation every pair."""
    found: dict[tuple[str, str | None], Measured] = {}
    for one in measured:
        if one.op == "send_recv":
            continue
        key = (one.op, one.host)
        before = found.get(key)
        if before is None or (len(before.gpus), before.bytes) < (len(one.gpus), one.bytes):
            found[key] = one
    return list(found.values())


def devices_text(checkup: Checkup, gpus: Sequence[int]) -> str:
    """'GPU 0–3', or 'ranks 0–1' on the CPU."""
    if checkup.backend == "nccl":
        return f"GPU {ranks_text(gpus, 6)}"
    return f"rank{'' if len(gpus) == 1 else 's'} {ranks_text(gpus, 6)}"


def trial_devices(checkup: Checkup, trial: Trial) -> str:
    """What a trial ran on: 'GPU 0–7 of node-1', or 'ranks 0–15 of 2 nodes'; the host only where there are several."""
    if len(trial.hosts) > 1:
        return f"ranks {ranks_text(trial.gpus, 6)} of {len(trial.hosts)} nodes"
    of = f" of {trial.hosts[0]}" if trial.hosts and len(checkup.hosts) > 1 else ""
    return f"{devices_text(checkup, trial.gpus)}{of}"


def measured_devices(checkup: Checkup, one: Measured) -> str:
    """What a bandwidth was measured on: over several nodes, where no host is named, devices are ranks."""
    if one.host is None and len(checkup.hosts) > 1:
        return say("all_nodes", ranks=ranks_text(one.gpus, 6))
    return devices_text(checkup, one.gpus)


def bandwidth_text(one: Measured) -> str:
    """'all_reduce 340 GB/s at 256 MiB'."""
    return f"{one.op} {rate_text(one.busbw_gbs)} GB/s at {message_text(one.bytes)}"


def benchmark_line(one: Benchmark) -> str:
    """'all_reduce of nccl-tests over 8 GPUs on node-1: 340 GB/s at 1 GiB, 24.1 µs at 8 B'."""
    if alone := alone_text(one):
        return alone
    best, least = one.best, one.smallest
    smallest = f"{digits_text(least.time_us)} µs at {message_text(least.bytes)}"
    if max(row.bytes for row in one.sizes) < _TELLS_RATE:
        return say("no_large_message", test=benchmark_text(one), time=smallest)
    rate = f"{rate_text(best.busbw_gbs)} GB/s at {message_text(best.bytes)}"
    return say("benchmark_line", test=benchmark_text(one), rate=rate, smallest=None if least is best else smallest)


def changed_text(checkup: Checkup) -> str:
    """' with NCCL_P2P_DISABLE=1': what bandwidths were measured with; empty for the environment as it is."""
    change = measured_with(checkup)
    return f" {with_text(change)}" if change.size else ""


def works_text(one: Attempt) -> str:
    """Whether a change that was tried works, and is the one advised."""
    return WORDS["works.advised" if one.chosen and one.works else "works.yes" if one.works else "works.no"]


def alike_looks(looks: Sequence[Look]) -> list[tuple[Look, list[str]]]:
    """Looks in their order, equal ones of several hosts once, with all these hosts."""
    merged: dict[tuple[str, ...], tuple[Look, dict[str, None]]] = {}
    for look in looks:
        key = (look.area, look.what, look.found, look.level, look.why, look.advice)
        merged.setdefault(key, (look, {}))[1][look.host] = None
    return [(look, list(hosts)) for look, hosts in merged.values()]


def _on_one_device(checkup: Checkup) -> Headline:
    """No setting lets several devices work together."""
    device, devices = ("GPU", "GPUs") if checkup.backend == "nccl" else ("process", "processes")
    alone = next((trial for trial in checkup.trials if len(trial.gpus) == 1 and trial.outcome in BAD), None)
    tried = any(len(trial.gpus) > 1 and not trial.as_it_is for trial in checkup.trials)
    which = ""
    if alone is not None:
        on = f" of {alone.hosts[0]}" if len(alone.hosts) == 1 < len(checkup.hosts) else ""
        which = f"{device} {alone.gpus[0]}{on}"
    sentence = say("alone" if which else "no_setting" if tried else "no_time", devices=devices, which=which)
    return Headline("error", f"{sentence} {say('on_one', device=device, batches=checkup.fallback)}")


def _with_settings(checkup: Checkup, settings: Remedy) -> Headline:
    change, before = with_text(settings.change), settings.before_gbs
    after = None if settings.after_gbs is None else f"{rate_text(settings.after_gbs)} GB/s"
    if before is None:
        broken = [trial_text(trial, checkup.hosts) for trial in broken_trials(checkup)[:1]]
        return Headline("error", say("settings", change=change, after=after, first_broken="".join(broken)))
    factor = settings.after_gbs / before if settings.after_gbs else None
    facts: dict[str, Any] = {"before": f"{rate_text(before)} GB/s", "after": after, "factor": factor}
    return Headline("warning", say("settings_faster", change=change, **facts))


def _healthy(checkup: Checkup) -> Headline:
    if all(trial.outcome != "ok" for trial in checkup.trials):
        return _untested(checkup)
    rows = [one for one in largest(checkup.measured) if one.op == "all_reduce"]
    several = len(checkup.hosts) > 1
    over_all = [one for one in rows if one.host is None] if several else []
    speeds = [
        bandwidth_text(one) + (f" on {one.host}" if several and one.host else " over all nodes" if several else "")
        for one in (over_all or rows)[:_MOST_NAMES]
    ]
    without_gpus = None if checkup.backend == "nccl" else checkup.backend
    return Headline("clear", say("healthy", without_gpus=without_gpus, measured=speeds))


def _untested(checkup: Checkup) -> Headline:
    """Of files that others saved, or of a machine whose GPUs were not tested: what they show, and no clean bill."""
    if checkup.log is not None and (warned := nccl_warnings(checkup.log)):
        facts: dict[str, Any] = {"explained": bool(other_findings(checkup)), "other_warnings": len(warned) - 1 or None}
        return Headline("info", say("warned", warning=warning_text(warned[0]).rstrip(".!"), **facts))
    if checkup.benchmarks:
        said = benchmark_line(max(checkup.benchmarks, key=lambda one: one.best.busbw_gbs))
        judged = any(check.rule == SLOW_TEST.id and check.status == "clear" for check in checkup.checks)
        unknown = not judged and not all(map(alone_text, checkup.benchmarks))
        return Headline("info", say("benchmark", said=said, links_unknown=unknown))
    if not checkup.looks and all(check.status == "not_evaluated" for check in checkup.checks):
        why = next((check.reason for check in checkup.checks if check.rule == BELOW_LINKS.id), None)
        return Headline("info", say("not_judged", reason=why))
    return Headline("info", WORDS["untested"])
