"""TO-W002: ranks that wait for a core, what it leaves of other findings, and the functions that stacks name."""

import gzip
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from observed_run import BEGAN_NS, Step, usual, write_machine, write_rank

from traceops.across.run_use import MachineUse
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules import whole_run_machine
from traceops.rules.overlap import EXPOSED, waited_pct, without_waiting
from traceops.rules.overlap_gain import Exposed
from traceops.rules.steps import held_up
from traceops.rules.whole_run_claims import CoresTaken, LateForCore, WaitsForCore, WaitsInRecorded
from traceops.traces.observed import read_observed

RUN = Path(__file__).parents[1] / "data" / "straggler_gloo2"


def late_for_cores(tmp_path, late_ms, others_ms, looks=(), longer_ms=0.0, window=range(8, 14)):
    """straggler_gloo2, whose rank 1 is 67 ms late in each recorded step, with so much waiting for a core in it.

    window: the recorded steps with that waiting.
    longer_ms: what looks at rank 1's host find in a function that rank 0 is not in.
    """
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"] = [{"rank": rank, "pid": 100 + rank} for rank in range(2)]
    (run / "run.json").write_text(json.dumps(manifest))
    for rank, ms in enumerate((others_ms, late_ms)):
        steps = [usual(100.0, recorded=n in range(8, 14), core_wait_ms=ms * (n in window)) for n in range(60)]
        for step in steps if rank else ():
            step.stacks["tokenize"] = longer_ms
        write_rank(run, rank, steps)
    if looks:
        write_machine(run, looks)
    return analyze(run)


def looks_of(waits, refused=0.0, stolen=0.0, wanted=None, used=None):
    """What the launcher saw of ranks that wait such parts of the time for a core.

    stolen: cores that the hypervisor took all the time, of so many `wanted`; refused: that a quota refused beside those
    that were `used`. An earlier version noted neither `wanted` nor `used`.
    """
    lines = []
    for t in range(7):
        ms = BEGAN_NS // 10**6 + 1000 * t
        lines += [
            ["r", ms, rank, 100 + rank, 900.0 * t, 1000 * part * t, 0, rank, 1000 * (1 - part) * t]
            for rank, part in enumerate(waits)
        ]
        later = [None if cores is None else 1000 * cores * t for cores in (wanted, used)]
        lines.append(["h", ms, 1000 * stolen * t, 1000 * refused * t, *(later if any(later) or not t else ())])
    return lines


@pytest.mark.parametrize(("wanted", "pct"), [(26.0, 0), (2.6, 20), (None, 0)])
def test_what_the_hypervisor_takes_is_a_part_of_what_all_cores_do(tmp_path, wanted, pct):
    """24 ranks on 32 cores: half a core of them was gone, and "52 % of the time" was said."""
    report = late_for_cores(tmp_path, 0.0, 0.0, looks_of((0.0, 0.0), stolen=0.52, wanted=wanted))
    stolen = [found for found in told(report) if found.cause == "stolen"]
    assert [found.evidence[0].value for found in stolen] == ([pct] if pct else [])
    assert all("20 % of the time in which cores were wanted" in found.message for found in stolen)


def told(report, rule="TO-W002"):
    return [finding for finding in report.findings if finding.rule == rule]


@pytest.mark.parametrize("looks", [(), looks_of((0.0, 0.05))])
def test_waits_in_the_recorded_steps_alone_name_the_rank(tmp_path, looks):
    """A run too short for the launcher's looks, or crowded in its window only, had no finding at all."""
    report = late_for_cores(tmp_path, 65.0, 0.0, looks)
    [held] = told(report)
    assert (held.ranks, held.cause, held.severity) == ((1,), "shared_cores", "warning")
    assert claim_of(held, LateForCore).waited == pytest.approx(65, abs=0.05)
    assert 60 < held.impact_ms < 67, "what the replay says that its lateness costs"
    assert card_of(report).headline.startswith("Rank 1 is late because it waits for a core")
    assert not told(report, "TO-S001")
    check = next(check for check in report.checks if check.rule == "TO-S001")
    assert check.reason.endswith("see TO-W002")


def test_what_the_launcher_saw_gets_the_cost(tmp_path):
    [held] = told(late_for_cores(tmp_path, 65.0, 0.0, looks_of((0.0, 0.65))))
    claim = claim_of(held, WaitsForCore)
    assert claim.pct == pytest.approx(65, abs=0.5) and claim.late.rank == 1 and 60 < held.impact_ms < 67


def test_a_rank_late_by_itself_is_not_said_to_be_late_for_cores(tmp_path):
    report = late_for_cores(tmp_path, 20.0, 0.0)
    assert told(report, "TO-S001")
    assert [(one.severity, "late" in one.message) for one in told(report)] == [("info", False)]


def test_one_quota_is_one_finding(tmp_path):
    """Each rank of a container had a finding of its own."""
    [held] = told(late_for_cores(tmp_path, 65.0, 0.0, looks_of((0.0, 0.05), refused=0.5, used=0.5)))
    assert (held.ranks, held.cause) == ((0, 1), "quota")
    claim = claim_of(held, CoresTaken)
    assert (claim.cause, claim.pct, claim.late.rank) == ("quota", pytest.approx(50), 1)


@pytest.mark.parametrize(
    ("refused", "used", "pct"),
    [
        (1.38, 0.60, 70),  # two threads, 0.6 cores: each waits 70 % of the time, and "138 % of the time" was said
        (0.66, 1.18, 36),  # two threads, 1.2 cores
        (0.48, 0.50, 49),  # one thread, half a core
        (1.38, None, 0),  # an earlier log does not tell what the cores add up to
    ],
)
def test_what_a_quota_refuses_is_a_part_of_what_the_container_wanted(tmp_path, refused, used, pct):
    """A real cgroup on two cores: the kernel adds up what each core was refused."""
    report = late_for_cores(tmp_path, 0.0, 0.0, looks_of((0.0, 0.0), refused=refused, used=used))
    quota = [found for found in told(report) if found.cause == "quota"]
    assert [round(found.evidence[0].value) for found in quota] == ([pct] if pct else [])


def judged(uses):
    inputs = SimpleNamespace(
        machine=tuple(uses), run=SimpleNamespace(replay=None, ranks=()), observed=(), found_before=lambda *rules: []
    )
    [verdict_of_machine] = whole_run_machine.judge(inputs)
    return verdict_of_machine.findings


def use(rank, pct, host="a"):
    return MachineUse(rank, host, looks=60, waited_pct=pct, crowded_pct=pct)


@pytest.mark.parametrize("pct, severity", [(12.0, "info"), (50.0, "warning")])
def test_all_ranks_on_one_core(pct, severity):
    """Two ranks that share one core wait half of the time, alike: that was a remark under 'nothing serious found'."""
    [found] = judged([use(0, pct), use(1, pct)])
    assert (found.severity, found.ranks) == (severity, (0, 1))


def test_most_ranks_on_a_host_with_too_few_cores():
    """Five of eight ranks wait alike, so that each was like its median peer; the other host has room."""
    found = judged([*(use(rank, 20.0) for rank in range(5)), *(use(rank, 0.1, "b") for rank in range(5, 8))])
    assert {one.severity for one in found} == {"warning"}
    assert sorted(rank for one in found for rank in one.ranks) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "looks, severity", [((), "warning"), (looks_of((0.05, 0.05)), "info"), (looks_of((0.5, 0.5)), "warning")]
)
def test_all_ranks_on_one_core_in_a_run_too_short_for_the_launcher(tmp_path, looks, severity):
    """Two ranks on one core had '✔ nothing serious': three looks, a second apart, are a longer run than many."""
    [waiting] = told(late_for_cores(tmp_path, 40.0, 40.0, looks))
    assert (waiting.ranks, waiting.cause, waiting.severity) == ((0, 1), "shared_cores", severity)
    by_launcher = len(looks) > 0 and severity == "warning"
    assert (claim_of(waiting, WaitsInRecorded) is not None) is not by_launcher


@pytest.mark.parametrize("ms, severities", [(15.0, ["info"]), (8.0, [])])
def test_short_waits_in_the_recorded_steps_are_a_remark_or_nothing(tmp_path, ms, severities):
    report = late_for_cores(tmp_path, ms, ms)
    assert [one.severity for one in told(report)] == severities
    if not severities:
        [check] = [check for check in report.checks if check.rule == "TO-W002"]
        assert check.status == "not_evaluated", "nobody looked at the machine: it is not cleared"


@pytest.mark.parametrize(("window", "severities"), [((10,), []), ((10, 11), ["info"])])
def test_one_step_without_a_core_is_no_lack_of_cores(tmp_path, window, severities):
    """'Wait 16 % of their recorded steps for a core', where something else ran there for once."""
    report = late_for_cores(tmp_path, 95.0, 95.0, window=window)
    assert [one.severity for one in told(report)] == severities


@pytest.mark.parametrize("waited_ms, blamed", [(65.0, False), (5.0, True)])
def test_no_line_is_blamed_for_cores_that_a_rank_did_not_get(tmp_path, waited_ms, blamed):
    """The launcher saw both ranks wait alike, so the rank 'spends 60 ms in a line, its peers none' was an error."""
    looks = looks_of((0.5, 0.55))
    report = late_for_cores(tmp_path, waited_ms, 0.0, looks, longer_ms=60.0)
    assert bool(told(report, "TO-W003")) is blamed


def looks_at(*ranks):
    """What the launcher saw: of each rank the part of the time in which it waits for a core, and in which it runs."""
    lines = []
    for t in range(7):
        ms = BEGAN_NS // 10**6 + 1000 * t
        for rank, (waits, runs) in enumerate(ranks):
            lines.append(["r", ms, rank, 100 + rank, 900.0 * t, 1000 * waits * t, 0, rank, 1000 * runs * t])
    return lines


@pytest.mark.parametrize(("peer", "late"), [((0.06, 0.04), True), ((0.005, 0.095), False)])
def test_who_works_more_waits_more_on_cores_that_are_as_full(tmp_path, peer, late):
    """A slow collator on one rank of a busy machine: "with cores as its peers have them 142 ms shorter" led. Its peer,
    asleep in the collective, was refused a core as often."""
    report = late_for_cores(tmp_path, 66.0, 6.0 if late else 0.0, looks_at(peer, (0.6, 0.4)))
    assert bool(told(report, "TO-S001")) == late
    assert any("late" in found.facts for found in told(report)) != late


def test_what_peers_wait_is_no_less_for_cores_as_full(tmp_path):
    """Rank 1 logs for 100 ms a step; its peer waits longer for cores than it does. It was 'the machine's doing'."""
    report = late_for_cores(tmp_path, 60.0, 80.0, looks_at((0.54, 0.2), (0.24, 0.065)))
    [found] = told(report, "TO-S001")
    assert found.ranks == (1,)
    assert not any("late" in one.facts for one in told(report))


def test_ranks_of_another_launcher_on_this_machine_are_no_strangers(tmp_path):
    """Two launchers, one machine, one file: each took the other's rank for a process that is in the way."""
    others = [["p", BEGAN_NS // 10**6 + 3000 * t, pid, "python", 42.0, 1] for t in range(3) for pid in (100, 101, 777)]
    report = late_for_cores(tmp_path, 0.0, 0.0, [*looks_of((0.3, 0.3)), *others])
    [found] = told(report)
    assert "pid 777" in found.message and "pid 10" not in found.message


BOUNDS = (10.0, 20.0, 40.0)


def exposed(share, severity):
    claim = Exposed(exposed=5.0, pct=share, step=500 / share)
    evidence = [
        Evidence(Fact.BUCKET, 5.0, "ms/step", subject="comm_transfer"),
        Evidence(Fact.BUCKET_PCT, share, "%", subject="comm_transfer"),
    ]
    return EXPOSED.verdict(EXPOSED.finding(severity, "high", claim, evidence, ranks=[0, 1]))


@pytest.mark.parametrize(
    "share, severity, waited, left",
    [
        (41.0, "error", 0.0, "error"),
        (41.0, "error", 9.0, "error"),  # little waiting is in all runs
        (61.0, "error", 20.0, "error"),
        (52.0, "error", 30.0, "warning"),
        (41.0, "error", 60.0, "info"),
        (25.0, "info", 60.0, "info"),
    ],
)
def test_what_may_be_waiting_for_a_core_is_not_claimed(share, severity, waited, left):
    """Two ranks that waited 60 % of a step for a core were told of an error: 41 % of it is transfer."""
    [found] = without_waiting(exposed(share, severity), Fact.BUCKET_PCT, BOUNDS, waited).findings
    assert found.severity == left
    assert (claim_of(found, Exposed).core_pct is not None) == (left != severity)


@pytest.mark.parametrize("on_gpu, through_host, expected", [(False, False, 40.0), (True, True, 40.0), (True, False, 0)])
def test_the_median_rank_of_those_whose_cores_do_the_transfer(tmp_path, on_gpu, through_host, expected):
    for rank, waits_ms in enumerate((20.0, 20.0, 0.0)):
        recorded = range(8, 14)
        write_rank(
            tmp_path, rank, [usual(recorded=n in recorded, core_wait_ms=waits_ms * (n in recorded)) for n in range(20)]
        )
    run = SimpleNamespace(
        ranks=[SimpleNamespace(summary=SimpleNamespace(rank=rank, on_gpu=on_gpu)) for rank in range(3)],
        through_host=through_host,
    )
    observed = tuple(read_observed(str(tmp_path), rank)[0] for rank in range(3))
    assert waited_pct(SimpleNamespace(run=run, observed=observed)) == pytest.approx(expected, abs=0.5)


STEPS = np.arange(10, 14)


@pytest.mark.parametrize(
    "waits_ms, rank",
    [
        ({13: 28.0}, 1),
        ({13: 9.0}, None),  # less than half of the 10 ms that it takes longer, beyond the usual 6
        ({10: 28.0, 11: 28.0, 12: 28.0, 13: 28.0}, None),  # in all steps alike
    ],
)
def test_the_rank_that_waits_for_a_core_in_the_long_step(tmp_path, waits_ms, rank):
    for one in range(2):
        own = dict.fromkeys(STEPS.tolist(), 6.0) | waits_ms if one else {}
        steps = [Step(33 if n == 13 else 11, recorded=n in STEPS, core_wait_ms=own.get(n, 0.0)) for n in range(20)]
        write_rank(tmp_path, one, steps)
    ranks = [
        SimpleNamespace(summary=SimpleNamespace(rank=one, step_numbers=STEPS), typical=STEPS != 13) for one in range(2)
    ]
    observed = tuple(read_observed(str(tmp_path), one)[0] for one in range(2))
    inputs = SimpleNamespace(run=SimpleNamespace(ranks=ranks, unlike=(13,)), observed=observed)
    found = held_up(inputs, longer_ms=10.0)
    assert found == (None if rank is None else (rank, pytest.approx(22.0)))


DATA = Path(__file__).parents[1] / "data"
LATE = DATA / "stacks_late2"


def found(report, rule):
    return next(one for one in report.findings if one.rule == rule)


def rewritten(folder, change):
    """A copy of the late run, each trace's text changed."""
    for path in sorted(LATE.glob("*.json.gz")):
        text = change(path.name, gzip.decompress(path.read_bytes()))
        (folder / path.name.removesuffix(".gz")).write_bytes(text)
    return folder


def test_a_late_rank_is_named_with_the_function_that_its_host_is_in():
    """Rank 1's host runs `busy` for 60 ms before each step; 36 % of its lateness has no cause by the devices alone."""
    report = analyze(LATE)
    one = found(report, "TO-S001")
    assert one.ranks == (1,)
    assert one.cause == "host"
    assert one.facts["does"] == "host"
    assert (
        "Rank 1's host is in busy (ranks_ddp.py:32) for 60.0 ms of each step. The other ranks spend less than 1.53 ms "
        "there. For 14.1 ms of it the GPU has nothing to run." in one.message
    )
    held = next(e for e in one.evidence if e.subject == "busy (ranks_ddp.py:32)")
    assert (held.value, held.peers, held.rank) == (pytest.approx(60.03, abs=0.01), 0, 1)
    card = card_of(report)
    assert card.headline == "Rank 1's host launches work late: the other rank waits 26.8 ms per step"
    assert found(report, "TO-S001").proof(Fact.REASON).value == "in busy (ranks_ddp.py:32)"


def test_what_a_library_does_counts_for_the_function_that_calls_it(tmp_path):
    """The training's loop ran before the recording began: where in the file it begins is not known."""
    busy = re.compile(rb"ranks_ddp\.py\(32\): busy")
    report = analyze(rewritten(tmp_path, lambda name, text: busy.sub(b"transformers/trainer.py(32): busy", text)))
    one = found(report, "TO-S001")
    assert one.cause == "host"
    assert (
        "Rank 1's host is in loop (ranks_sharded.py) for 66.2 ms of each step. The other ranks spend 5.85 ms"
        in one.message
    )


def test_functions_that_explain_less_than_a_fifth_are_not_named(tmp_path):
    """All frames but those of the model, in which the late rank is hardly longer."""
    loop = re.compile(rb"ranks_(ddp|sharded|train)\.py|case\.py")
    report = analyze(rewritten(tmp_path, lambda name, text: loop.sub(b"torch/busy.py", text)))
    one = found(report, "TO-S001")
    assert one.cause == "unknown"
    assert "stacks" not in one.message


def test_without_stacks_of_the_peers_nothing_is_compared(tmp_path):
    def change(name, text):
        return text.replace(b"python_function", b"python_func") if name.startswith("rank_0") else text

    one = found(analyze(rewritten(tmp_path, change)), "TO-S001")
    assert one.cause == "unknown"
    assert "stacks" not in one.message


def test_of_one_gpu_input_and_launches_are_named(tmp_path):
    """Hugging Face's Trainer on one H200, whose collate function in the main process takes 30 ms a step."""
    shutil.copy(DATA / "plain_profiler" / "own_collate" / "trace.json.gz", tmp_path)
    report = analyze(tmp_path)
    assert found(report, "TO-I002").message.endswith(
        "Rank 0's host is in collate (gpu_traces_frames.py:48) for 30.4 ms of the 31.5 ms that its GPU waits for input."
    )
    assert "is in compute_loss (gpu_traces_frames.py:55) for 19.0 ms of the" in found(report, "TO-I001").message


@pytest.mark.parametrize(("call_ms", "named"), [(3.0, True), (0.75, False)])
def test_calls_that_are_too_short_to_be_kept_on_peers_are_no_difference(tmp_path, call_ms, named):
    """'Its peers none', though they call it as often, 0.1 ms quicker: too short for a frame to be kept."""

    def many(name, text):
        trace = json.loads(text)
        for event in [one for one in trace["traceEvents"] if one["name"] == "ranks_ddp.py(32): busy"]:
            trace["traceEvents"].remove(event)
            for at in range(int(event["dur"] / (1000 * call_ms))):
                own = {"ts": event["ts"] + at * 1000 * call_ms, "dur": 1000 * call_ms}
                trace["traceEvents"].append({**event, **own})
        return json.dumps(trace).encode()

    one = found(analyze(rewritten(tmp_path, many)), "TO-S001")
    assert one.ranks == (1,)
    assert ("in busy (ranks_ddp.py:32)" in one.message) == named
