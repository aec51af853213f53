"""Every step of a run: which are unlike the others, and what the ranks do in them."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from observed_run import Step, usual, write_machine, write_rank

from traceops.across.host_difference import longer_on_one
from traceops.across.plain_step import EarlyWindow, PlainStep, SlowerBehind, StepsBefore, early_place, early_window
from traceops.across.plain_step import plain_step as plain_step_of
from traceops.across.run_use import machine_use
from traceops.across.whole_run import whole_run
from traceops.traces.observed import read_machines, read_observed


def measured(root, *ranks, extra=()):
    for rank, steps in enumerate(ranks):
        write_rank(root, rank, steps, extra)
    return whole_run([read_observed(str(root), rank)[0] for rank in range(len(ranks))])


def noisy(count, seed=3, ms=50.0, **more):
    draw = random.Random(seed)
    return [usual(ms * draw.uniform(0.96, 1.04), **more) for _ in range(count)]


def test_even_steps_hold_nothing(tmp_path):
    run = measured(tmp_path, noisy(200), noisy(200, seed=4))
    assert run.occasions == () and run.start == ()
    assert run.typical_ms == pytest.approx(50, rel=0.01)
    assert run.typical_steps == 199, "the first step holds the program's start"
    assert longer_on_one(run) == []


def test_compiled_code_is_the_programs_line_that_calls_it_on_all_ranks(tmp_path):
    """Its file has another name on each rank: 'rank 1 spends 27.3 ms a step in Runner.call, its peers none'."""
    zero, one = ([Step(50, stacks={f"compiled_{letter}": 40, "backward": 10}) for _ in range(120)] for letter in "ab")
    run = measured(tmp_path, zero, one)
    assert longer_on_one(run) == []
    assert {own[0].place.said for own in run.host.values()} == {"train (train.py:30)"}


def test_ranks_that_meet_in_few_steps_take_the_slowest_ones_steps(tmp_path):
    """Post-local SGD: of three ranks two take 8 ms and wait in each fourth: 'the typical step takes 9 ms', 79 % odd."""

    def quick():
        steps = noisy(81, ms=8.0)
        for at in range(4, 81, 4):
            steps[at] = Step(8 + 4 * 80, stacks={"forward": 8, "backward": 320})
        return steps

    late = [Step(88, stacks={"forward": 8, "tokenize": 80}) for _ in range(81)]
    run = measured(tmp_path, quick(), quick(), late)
    assert run.typical_ms == pytest.approx(88, rel=0.02) and run.occasions == ()
    assert run.like.sum() == 80
    [longer] = longer_on_one(run)
    assert (longer.rank, longer.ms) == (2, pytest.approx(80, rel=0.05))


def test_ranks_that_go_on_alone_are_no_late_and_waiting_ones(tmp_path):
    """An inference: nothing binds them, so each has its own mean."""
    run = measured(tmp_path, noisy(81, ms=10.0), noisy(81, ms=10.0), noisy(81, ms=30.0))
    assert run.typical_ms == pytest.approx(10, rel=0.05)


def test_evaluations_and_checkpoints_in_the_same_steps_are_told_apart(tmp_path):
    zero, one = noisy(201), noisy(201, seed=4)
    for at in range(10, 201, 10):
        zero[at], one[at] = (Step(250, stacks={"forward": 30, "backward": 20, "evaluate": 200}) for _ in "ab")
    for at in range(20, 201, 20):
        zero[at] = Step(350, stacks={"forward": 30, "backward": 20, "evaluate": 200, "save": 100})
        one[at] = Step(350, stacks={"forward": 30, "backward": 120, "evaluate": 200})
    run = measured(tmp_path, zero, one)
    by_cause = {one.cause: one for one in run.occasions}
    assert set(by_cause) == {"evaluation", "checkpoint"}
    evaluation, checkpoint = by_cause["evaluation"], by_cause["checkpoint"]
    assert (evaluation.times, checkpoint.times) == (20, 10)
    assert evaluation.more_ms / 20 == pytest.approx(200, rel=0.03)
    assert checkpoint.more_ms / 10 == pytest.approx(100, rel=0.05)
    assert evaluation.place.said == "evaluate (train.py:12)"
    assert checkpoint.place.said == "train (train.py:42)" and checkpoint.ranks == (0,)
    assert run.typical_ms == pytest.approx(50, rel=0.01), "never mixed into the typical step"


def test_what_a_model_without_gradients_computed_is_read_in_its_time(tmp_path):
    """A GPT's estimate_loss() came in the collector's steps. Two thirds of it were .item(), and nothing told of it."""
    steps = [usual() for _ in range(200)]
    for number in range(10, 200, 10):
        own = {"forward": 30, "backward": 20, "perplexity": 40, "perplexity_read": 110}
        steps[number] = Step(400, gc_ms=200, stacks=own)
    write_rank(tmp_path, 0, steps)
    run = whole_run([read_observed(str(tmp_path), 0)[0]])
    by_cause = {one.cause: one for one in run.occasions}
    assert set(by_cause) == {"garbage_collection", "inference"}
    assert by_cause["inference"].more_ms / 19 == pytest.approx(150, rel=0.05)
    assert by_cause["inference"].place.function == "perplexity"


@pytest.mark.parametrize(("save_ms", "told"), [(60, True), (10, False)])
def test_what_is_a_tenth_of_such_steps_is_told_where_it_is_a_part_of_the_run(tmp_path, save_ms, told):
    """Lightning saved behind each validation, 96 of 1,140 ms: 4.9 % of the run, and not a word."""
    steps = [usual() for _ in range(200)]
    for number in range(20, 200, 20):
        own = {"forward": 30, "backward": 20, "evaluate": 500, "save": save_ms}
        steps[number] = Step(550 + save_ms, stacks=own)
    write_rank(tmp_path, 0, steps)
    run = whole_run([read_observed(str(tmp_path), 0)[0]])
    by_cause = {one.cause: one for one in run.occasions}
    assert set(by_cause) == ({"evaluation", "checkpoint"} if told else {"evaluation"})
    assert by_cause["evaluation"].more_ms / 9 == pytest.approx(500, rel=0.03)
    if told:
        assert by_cause["checkpoint"].more_ms / 9 == pytest.approx(save_ms, rel=0.05)


@pytest.mark.parametrize(
    ("collects", "gc_ms", "compiles", "compile_ms"), [(5, 30, 4, 300), (2, 30, 3, 200), (7, 60, 5, 500)]
)
def test_a_collector_counts_in_the_steps_that_compile_again_too(tmp_path, collects, gc_ms, compiles, compile_ms):
    """It is less than a fifth of those, so a quarter to a third of its time and of its number was left out."""
    steps, true_gc, true_compile = [], [], []
    for number in range(201):
        gc, compiled = gc_ms * (number % collects == 0), compile_ms * (number % compiles == 0)
        own = {"forward": 30.0, "backward": 20.0}
        steps.append(Step(50.0 + gc + compiled, gc_ms=gc, compile_ms=compiled, stacks=own))
        true_gc.append(gc)
        true_compile.append(compiled)
    write_rank(tmp_path, 0, steps)
    run = whole_run([read_observed(str(tmp_path), 0)[0]])
    told = {one.cause: (one.more_ms, len(one.steps)) for one in run.occasions}
    for cause, true in (("garbage_collection", true_gc[1:]), ("recompilation", true_compile[1:])):
        assert told[cause] == (pytest.approx(sum(true), rel=0.02), sum(ms > 0 for ms in true))


def test_causes_that_looks_saw_for_longer_than_a_step_share_it(tmp_path):
    """The largest had all of it, and what came beside it nothing."""
    steps = [usual() for _ in range(200)]
    for number in range(20, 200, 20):
        steps[number] = Step(250, stacks={"evaluate": 200, "save": 100})
    write_rank(tmp_path, 0, steps)
    run = whole_run([read_observed(str(tmp_path), 0)[0]])
    by_cause = {one.cause: one.more_ms / 9 for one in run.occasions}
    assert by_cause["evaluation"] == pytest.approx(133, rel=0.03)
    assert by_cause["checkpoint"] == pytest.approx(67, rel=0.03)


def test_a_place_that_holds_only_most_of_it_is_not_all_of_it(tmp_path):
    """Compiling again at two lines was said to be at the one where it takes longest; then 40 % was 'most of it'."""
    steps = noisy(200)
    for at in range(10, 200, 20):
        steps[at] = Step(250, stacks={"forward": 50, "evaluate": 200})
    alone = measured(tmp_path / "one", steps)
    for at in range(20, 200, 20):
        steps[at] = Step(150, stacks={"forward": 50, "validate": 100})
    both = measured(tmp_path / "two", steps)
    for at in range(10, 200, 20):
        steps[at] = Step(150, stacks={"forward": 50, "evaluate": 100})
    even = measured(tmp_path / "three", steps)
    for run, placed in ((alone, 1.0), (both, 0.67), (even, 0.5)):
        [one] = run.occasions
        assert one.placed == pytest.approx(placed, abs=0.05)
        assert placed == 0.5 or one.place.said == "evaluate (train.py:12)"


def test_the_collector_and_the_compiler_are_told_by_their_own_times(tmp_path):
    zero, one = noisy(120), noisy(120, seed=4)
    for at in range(15, 120, 15):
        one[at] = Step(140, gc_ms=90, stacks={"forward": 120, "backward": 20})
        zero[at] = Step(140, stacks={"forward": 30, "backward": 110})
    for at in range(7, 120, 30):
        zero[at], one[at] = Step(900, compile_ms=840), Step(900, stacks={"backward": 880})
    run = measured(
        tmp_path, zero, one, extra=[["c", 37, 840_000, "forward", "/home/me/model.py", 9, "L['x'].size()[0] == 64"]]
    )
    by_cause = {one.cause: one for one in run.occasions}
    assert set(by_cause) == {"garbage_collection", "recompilation"}
    assert by_cause["garbage_collection"].ranks == (1,) and by_cause["garbage_collection"].times == 7
    assert by_cause["recompilation"].ranks == (0,) and by_cause["recompilation"].times == 4


def test_steps_that_nobody_looked_into_follow_the_rhythm(tmp_path):
    zero = noisy(200)
    for at in range(10, 200, 10):
        zero[at] = Step(150, stacks={"evaluate": 100, "forward": 50} if at % 30 else {})
    run = measured(tmp_path, zero)
    [evaluation] = run.occasions
    assert evaluation.cause == "evaluation" and evaluation.times == 19


@pytest.mark.parametrize("seen, told", [(13, {"host": 19}), (6, {"host": 6, "unknown": 13})])
def test_steps_that_nobody_looked_into_follow_a_function_seen_often(tmp_path, seen, told):
    """Half of the steps with a loss that was estimated had no look in them: 'nothing shows why'."""
    zero = noisy(200)
    for number, at in enumerate(range(10, 200, 10)):
        zero[at] = Step(150, stacks={"estimate": 100, "forward": 50} if number < seen else {})
    found = measured(tmp_path, zero).occasions
    assert {one.cause: one.times for one in found} == told
    assert found[-1 if seen == 6 else 0].place.said == "estimate_loss (train.py:55)"


@pytest.mark.parametrize("workers", [2, 8])
def test_input_late_in_every_few_steps_is_what_the_training_does(tmp_path, workers):
    """Workers that deliver at once: on an H200 the short steps between counted as typical, 48 ms of a mean of 193."""
    zero = noisy(200)
    for at in range(5, 200, workers):
        zero[at] = Step(350, stacks={"batch": 300, "forward": 30, "backward": 20})
    run = measured(tmp_path, zero)
    late = 300 / workers
    assert run.by_turns and run.occasions == () and run.in_time_ms == pytest.approx(50, rel=0.03)
    assert run.typical_ms == pytest.approx(50 + late, rel=0.05)
    assert plain_step(run).ms == pytest.approx(run.typical_ms, rel=0.02)
    assert sum(one.ms for one in run.host[0] if one.does == "input") == pytest.approx(late, rel=0.05)


def test_late_input_that_nobody_looked_into_counts_in_the_mean(tmp_path):
    """Two workers, a mean of 50 ms: it was told as 40, and a fifth of the run as what nothing explains."""
    zero = noisy(200, ms=10.0)
    for at in range(4, 200, 2):
        seen = {"batch": 80, "forward": 10} if at % 3 else {}
        zero[at] = Step(90 + at % 5, stacks=seen)
    run = measured(tmp_path, zero)
    assert run.by_turns and run.occasions == () and run.typical_steps == 199
    assert run.typical_ms == pytest.approx(run.mean_ms)


def test_what_takes_far_longer_than_late_input_is_no_part_of_it(tmp_path):
    zero = noisy(200, ms=10.0)
    for at in range(4, 200, 3):
        zero[at] = Step(90 + at % 5, stacks={"batch": 80, "forward": 10})
    for at in (51, 120):
        zero[at] = Step(900, stacks={"forward": 900})
    run = measured(tmp_path, zero)
    assert run.by_turns and [(one.cause, one.times) for one in run.occasions] == [("unknown", 2)]


def test_input_that_its_own_process_loads_late_is_no_step_that_the_training_always_has(tmp_path):
    """Each sixth step reads a large file: it was typical, and hid a rank that is late in all the others."""
    zero = noisy(200)
    for at in range(5, 200, 6):
        zero[at] = Step(350, stacks={"collate": 300, "forward": 30, "backward": 20})
    run = measured(tmp_path, zero)
    assert not run.by_turns and run.typical_ms == pytest.approx(50, rel=0.02)
    (late,) = run.occasions
    assert (late.cause, late.times, late.place.said) == ("input", 33, "collate_fn (data.py:88)")


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_behind_a_collective_keep_their_rhythm(tmp_path, ranks):
    """A checkpoint is long in two steps, the second on the peers: no rhythm was found for those not looked into."""
    steps = [noisy(400, seed=rank) for rank in range(ranks)]
    for at in range(49, 399, 50):
        seen = {"save": 500, "forward": 50} if at not in (149, 299) else {}
        steps[0][at] = Step(550, stacks=seen)
        for own in steps[1:]:
            own[at + 1] = Step(550, stacks={"backward": 550} if seen else {})
    occasions = measured(tmp_path, *steps).occasions
    assert [one.cause for one in occasions] == ["checkpoint"]


def test_input_late_once_an_epoch_is_no_typical_step(tmp_path):
    zero = noisy(200)
    for at in range(30, 200, 30):
        zero[at] = Step(900, stacks={"collate": 850, "forward": 30, "backward": 20})
    run = measured(tmp_path, zero)
    assert not run.by_turns and [one.cause for one in run.occasions] == ["input"]
    assert run.typical_ms == pytest.approx(50, rel=0.02)


def test_a_stall_in_what_every_step_does_is_no_cause(tmp_path):
    """A busy machine stops the host anywhere: where it stood then is not why."""
    zero = noisy(200)
    for at in range(13, 200, 41):
        zero[at] = Step(400, stacks={"forward": 380, "backward": 20})
    [unknown] = measured(tmp_path, zero).occasions
    assert unknown.cause == "unknown" and unknown.place is None


def test_a_function_that_most_steps_do_not_call_is_named(tmp_path):
    zero = noisy(200)
    for at in range(13, 200, 41):
        zero[at] = Step(400, stacks={"rare": 350, "forward": 30, "backward": 20})
    [rare] = measured(tmp_path, zero).occasions
    assert rare.cause == "host" and rare.place.said == "rebalance (train.py:51)"


def test_many_odd_steps_do_not_make_the_others_spread(tmp_path):
    """A third of the steps are odd, for three reasons: the spread of all is no measure of the others."""
    zero = noisy(200)
    for at in range(20, 200, 5):
        zero[at] = Step(300, gc_ms=250, stacks={"forward": 300})
    for at in range(21, 200, 10):
        zero[at] = Step(120, compile_ms=70, stacks={"forward": 120})
    run = measured(tmp_path, zero)
    assert {one.cause for one in run.occasions} == {"garbage_collection", "recompilation"}
    assert run.typical_ms == pytest.approx(50, rel=0.02)
    assert run.garbage[0].steps == 36 and run.compiled[0].steps == 18


def test_where_most_steps_are_odd_what_has_no_time_of_its_own_is_told_too(tmp_path):
    """Two thirds are odd: the collector every other step, the compiler every third, an evaluation every tenth."""
    zero = noisy(240)
    for at in range(12, 240):
        gc_ms, compile_ms = 100 * (at % 2 == 0), 80 * (at % 3 == 0)
        evaluates = 200 if at % 10 == 5 else 0
        stacks = {"forward": 30, "backward": 20, "evaluate": evaluates}
        if gc_ms or compile_ms or evaluates:
            zero[at] = Step(50 + gc_ms + compile_ms + evaluates, gc_ms=gc_ms, compile_ms=compile_ms, stacks=stacks)
    run = measured(tmp_path, zero)
    by_cause = {one.cause: one for one in run.occasions}
    assert {"garbage_collection", "recompilation", "evaluation"} <= set(by_cause)
    assert run.typical_ms == pytest.approx(50, rel=0.02)
    assert by_cause["evaluation"].times == 23 and by_cause["evaluation"].more_ms / 23 == pytest.approx(200, rel=0.05)
    assert by_cause["evaluation"].place.said == "evaluate (train.py:12)"


def test_recorded_steps_and_the_start_are_apart(tmp_path):
    steps = [Step(9000), Step(400), Step(300), *noisy(100)]
    for at in range(20, 26):
        steps[at] = Step(200, recorded=True)
    run = measured(tmp_path, steps)
    assert run.start == (1, 2) and run.occasions == ()
    assert run.typical_steps == len(steps) - 9


def test_the_devices_timeline_counts_where_it_is_known(tmp_path):
    steps = [Step(10 if n % 2 else 90, device_ms=50 + (n % 3) * 0.1) for n in range(60)]
    run = measured(tmp_path, steps)
    assert run.on_device and run.occasions == () and run.typical_ms == pytest.approx(50.1, abs=0.1)


def test_a_device_that_is_behind_now_and_then_makes_no_step_longer(tmp_path):
    """Each 20th step has 50 ms of kernels more, and the host bounds steps: 20 % of the run went to 'unlike steps'."""
    caught_up = {0: 56.0, **dict.fromkeys(range(1, 7), 5.0), 7: 9.0}
    steps = [usual(12.0, device_ms=caught_up.get(n % 20, 12.0)) for n in range(400)]
    run = measured(tmp_path, steps)
    assert not run.on_device and run.occasions == () and run.typical_ms == pytest.approx(12.0)


@pytest.mark.parametrize("device_ms", [200.0, 275.0, 290.0])
def test_what_the_host_collects_while_its_device_works_costs_nothing(tmp_path, device_ms):
    """The collector takes 300 ms of the host in each third step: it was told as 50 % of the time."""
    steps = []
    for n in range(300):
        odd = n % 3 == 2
        steps.append(usual(320.0 if odd else 140.0, gc_ms=300.0 * odd, device_ms=device_ms if odd else 200.0))
    run = measured(tmp_path, steps)
    taken = 100 * (device_ms - 200) / (400 + device_ms)
    assert run.garbage[0].pct == pytest.approx(taken, abs=0.5) and run.garbage[0].steps == 100


def test_too_few_steps_tell_nothing(tmp_path):
    assert measured(tmp_path, noisy(6)) is None
    assert whole_run([]) is None


@pytest.mark.parametrize("name", ["collate", "tokenize"])
def test_the_line_on_which_one_host_is_longer(tmp_path, name):
    late = [Step(80, stacks={name: 31, "forward": 30, "backward": 19}) for _ in range(100)]
    peers = [Step(80, stacks={name: 2, "forward": 30, "backward": 48}) for _ in range(100)]
    [one] = longer_on_one(measured(tmp_path, peers, late, peers))
    assert one.rank == 1 and one.more_ms == pytest.approx(29, abs=2)
    assert one.place.line == (88 if name == "collate" else 7)
    assert one.does == ("input" if name == "collate" else None)


def test_a_line_outside_of_functions_has_its_own_time_and_not_that_of_all_the_script(tmp_path):
    """Rank 0 was said to spend 118 ms in the line of its sleep of 100 ms, and its peers 22 ms there."""
    late = [Step(120, stacks={"top_stall": 100, "top_batch": 20}) for _ in range(60)]
    peers = [Step(120, stacks={"top_batch": 20, "backward": 100}) for _ in range(60)]
    [one] = longer_on_one(measured(tmp_path, late, peers))
    assert one.rank == 0 and one.place.said == "train.py:10" and one.peers_ms == 0
    assert one.ms == pytest.approx(100, abs=2)
    run = measured(tmp_path / "again", late, peers)
    assert [(one.place.said, round(one.ms)) for one in run.host[0]] == [("train.py:10", 100), ("train.py:13", 20)]


def test_who_waits_elsewhere_is_not_longer(tmp_path):
    """Rank 0 waits in .item() for what rank 1 does; ranks with other work do not wait for each other."""
    late = [Step(80, stacks={"tokenize": 31, "forward": 30, "item": 19}) for _ in range(100)]
    waits = [Step(80, stacks={"forward": 30, "item": 50}) for _ in range(100)]
    assert [one.rank for one in longer_on_one(measured(tmp_path, waits, late))] == [1]
    other = [Step(80, stacks={"collate": 31, "forward": 30, "item": 19}) for _ in range(100)]
    assert longer_on_one(measured(tmp_path / "even", other, late)) == []


def test_few_looks_prove_nothing(tmp_path):
    late = [*noisy(40), Step(50, stacks={"tokenize": 30, "backward": 20})]
    assert longer_on_one(measured(tmp_path, noisy(41, seed=4), late)) == []


BEGIN = 1_800_000_000_000
UUIDS = ("GPU-aaaa", "GPU-bbbb")


def look(at, *, waits=(1.0, 1.0), others=(), on_gpu=(), mhz=(1980, 1980)):
    """The launcher's lines `at` s after the training began; `on_gpu`: pid and bytes of a stranger on GPU 1."""
    ms = BEGIN + 1000 * at
    lines = [["r", ms, r, 100 + r, 900 * at, waits[r] * 10 * at, 0, r, 50 * at] for r in range(2)]
    lines += [["h", ms, 0.0, 0.0], *(["p", ms, pid, "hog", pct, 1] for pid, pct in others)]
    for gpu in range(2):
        strangers = [on_gpu] if gpu == 1 and on_gpu else []
        processes = [[100 + gpu, 10**9], *strangers]
        active = [[pid, 55] for pid, _ in processes]
        lines.append(["G", ms, gpu, mhz[gpu], 0, 600.0, 60, 99, 10**10, processes, active])
    return lines


def used(root, looks):
    for rank in range(2):
        write_rank(root, rank, [usual(100.0) for _ in range(300)])
    facts = [["g", n, uuid, "H200", 1980, 700.0] for n, uuid in enumerate(UUIDS)]
    write_machine(root, [*facts, *(line for own in looks for line in own)])
    manifest = {"ranks": [{"rank": r, "pid": 100 + r, "device": {"uuid": UUIDS[r]}} for r in range(2)]}
    observed = [read_observed(str(root), rank)[0] for rank in range(2)]
    return machine_use(read_machines(str(root)), observed, manifest)


def test_what_the_machine_did_for_each_rank(tmp_path):
    zero, one = used(
        tmp_path,
        [
            look(at, waits=(1, 35), others=[(4711, 97.0)], on_gpu=[4242, 5 * 10**9], mhz=(1980, 1200))
            for at in range(1, 25)
        ],
    )
    assert (zero.waited_pct, one.waited_pct) == (pytest.approx(1), pytest.approx(35))
    assert [(s.pid, s.name, s.busy_pct) for s in one.on_cores] == [(4711, "hog", 97.0)]
    assert [(s.pid, s.bytes, s.busy_pct) for s in one.on_gpu] == [(4242, 5 * 10**9, 55.0)]
    assert (zero.mhz, one.mhz) == (1980, 1200) and one.gpu.most_mhz == 1980


def test_what_ranks_read_and_networks_carried(tmp_path):
    def lines(at):
        ms = look(at)[0][1]
        read = [["d", ms, rank, 2_000_000 * at * (1 + rank), 50_000_000 * at] for rank in range(2)]
        return [*look(at), *read, ["n", ms, 10**9 * at, 10**6 * at], ["m", 1, "/data", "nfs4"]]

    zero, one = used(tmp_path, [lines(at) for at in range(1, 25)])
    apart = (look(2)[0][1] - look(1)[0][1]) / 1e3
    assert (zero.from_storage, one.from_storage) == (pytest.approx(2e6 / apart), pytest.approx(4e6 / apart))
    assert (one.read, one.received, one.sent) == tuple(pytest.approx(count / apart) for count in (5e7, 1e9, 1e6))
    assert (zero.storage, one.storage, zero.gpu_busy_pct) == (None, ("/data", "nfs4"), 99)


def test_processes_of_another_namespace_are_no_strangers(tmp_path):
    """The driver tells pids as the host counts them; a container counts anew."""
    uses = used(tmp_path, [look(at, on_gpu=[4242, 5 * 10**9]) for at in range(1, 25)])
    assert uses[1].on_gpu
    lines = [look(at, on_gpu=[4242, 5 * 10**9]) for at in range(1, 25)]
    for own in lines:
        for line in own:
            if line[0] == "G":
                line[9] = [[pid + 70_000, used] for pid, used in line[9]]
    assert all(use.on_gpu == () for use in used(tmp_path / "container", lines))


def test_looks_outside_of_the_training_do_not_count(tmp_path):
    assert used(tmp_path, [look(at, waits=(60, 60)) for at in range(100, 130)]) == ()


WINDOW = range(10, 14)


def recorded_at(steps, *numbers):
    for number in numbers:
        steps[number].recorded = True
    return steps


def test_a_window_in_a_training_that_has_not_settled_is_told(tmp_path):
    steps = [usual(ms) for ms in [90.0] * 20 + [50.0] * 60]
    early = early_window(measured(tmp_path, recorded_at(steps, *range(8, 14))), WINDOW)
    assert early == EarlyWindow(near_ms=90.0, later_ms=50.0, settled=17), "most of the next eight have settled"
    slower = [usual(ms) for ms in [15.0] * 20 + [85.0] * 60]
    later = early_window(measured(tmp_path, recorded_at(slower, *range(8, 14))), WINDOW)
    assert later == EarlyWindow(near_ms=15.0, later_ms=85.0, settled=17), "they may become longer too"
    for before, window, behind in ((15.0, 85.0, 85.0), (90.0, 50.0, 50.0)):
        steps = [usual(ms) for ms in [before] * 8 + [window] * 6 + [behind] * 60]
        steps = recorded_at(steps, *range(8, 14))
        assert early_window(measured(tmp_path, steps), WINDOW) is None, "its own steps are like later ones"
    settled = recorded_at(noisy(80), *range(8, 14))
    assert early_window(measured(tmp_path, settled), WINDOW) is None
    assert early_window(measured(tmp_path, noisy(80)), ()) is None, "nothing was recorded"
    short = recorded_at([usual(ms) for ms in [90.0] * 20 + [50.0] * 12], *range(8, 14))
    assert early_window(measured(tmp_path, short), WINDOW) is None, "too few later steps tell"


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([Step(90.0, stacks={"rare": 45, "forward": 45})] * 20, (1, "rebalance (train.py:51)")),
        ([Step(90.0, stacks={"forward": 90})] * 20, None),
        ([Step(175.0, stacks={"rare": 130, "forward": 45}), usual(5.0)] * 10, None),
    ],
)
def test_what_the_host_does_before_a_training_has_settled_is_named(tmp_path, before, told):
    """A finder of rates plotted on rank 0 for 400 ms in each of the first 12 steps, most of the run: nobody said so."""
    other, own = [[replace(step) for step in steps] for steps in ([usual(90.0)] * 20, before)]
    write_rank(tmp_path, 0, recorded_at(other + noisy(60), *range(8, 14)))
    write_rank(tmp_path, 1, recorded_at(own + noisy(60), *range(8, 14)))
    ranks = [read_observed(str(tmp_path), rank)[0] for rank in (0, 1)]
    run = whole_run(ranks)
    found = early_place(run, ranks, EarlyWindow(near_ms=90.0, later_ms=50.0, settled=17), 8)
    assert (None if found is None else (found.rank, found.place.said)) == told
    assert found is None or found.ms == pytest.approx(45, rel=0.05)


def test_only_the_window_that_is_analysed_may_lie_too_early(tmp_path):
    def run():
        return [usual(ms) for ms in [90.0] * 20 + [50.0] * 80]

    twice = recorded_at(run(), *range(8, 14), *range(50, 56))
    assert early_window(measured(tmp_path, twice), range(52, 56)) is None, "a later one counts"
    started = recorded_at(run(), 1, 2, *range(8, 14))
    assert early_window(measured(tmp_path, started), WINDOW).settled == 17, "the program's start was recorded too"


LIGHT = (*range(16, 23), *range(128, 135), *range(1024, 1031))


@pytest.mark.parametrize("count", [140, 1100])
def test_light_windows_that_follow_do_not_hide_when_a_training_has_settled(tmp_path, count):
    """Of 140 steps too few were left behind them, and of 1,100 the last 69: 'record from step 1031 on'."""
    steps = [usual(ms) for ms in [90.0] * 26 + [50.0] * (count - 26)]
    run = measured(tmp_path, recorded_at(steps, *range(8, 14), *(at for at in LIGHT if at < count)))
    assert early_window(run, WINDOW) == EarlyWindow(near_ms=90.0, later_ms=50.0, settled=23)


def test_steps_between_light_windows_are_behind_the_window_as_well(tmp_path):
    """The last nine of 1,040 steps, with an evaluation's tail, were all that told of steps behind the window."""
    steps = [usual(50.0) for _ in range(1031)] + [usual(62.0) for _ in range(9)]
    run = measured(tmp_path, recorded_at(steps, *range(8, 14), *LIGHT))
    ended = {"world_size": 1, "ranks": [{"detached": {"done": True}, "windows": [{"steps": [10, 11, 12, 13]}]}]}
    plain = plain_step(
        run, {**ended, "schedule": {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}}
    )
    assert plain.longer is None and plain.ms == pytest.approx(50.0, rel=0.01)


def plain_step(run, manifest=None, *, on_gpu=True):
    return plain_step_of(run, manifest or {}, on_gpu=on_gpu)


def test_where_no_profiler_stays_all_steps_count(tmp_path):
    """On a CPU, or where CUPTI was ended: steps that are longer behind the window are the training's own, and told."""
    steps = [usual(50.0) for _ in range(8)] + [usual(120.0, recorded=True) for _ in range(6)]
    run = measured(tmp_path, steps + [usual(60.0) for _ in range(22)])
    mean = (7 * 50 + 22 * 60) / 29
    ended = {"world_size": 1, "ranks": [{"rank": 0, "detached": {"done": True}}]}
    for plain in (plain_step(run, ended), plain_step(run, on_gpu=False)):
        assert plain.ms == plain.near_ms == plain.whole_ms == pytest.approx(mean) and plain.before is None
        assert plain.behind_ms is None and plain.longer == SlowerBehind(50.0, 60.0) and plain.longer.much
    assert plain_step(run).ms == 50.0 and plain_step(run).longer == SlowerBehind(50.0, 60.0)


def test_without_a_whole_run_the_steps_that_the_capture_timed_are_taken():
    assert plain_step(None, {"unprofiled_step_ms": 40}) == PlainStep.even(40.0)
    assert plain_step(None, {}) is None


def test_a_step_without_recording_is_one_from_before_the_windows(tmp_path):
    def plain(before, behind):
        steps = [usual(before) for _ in range(8)] + [usual(120.0, recorded=True) for _ in range(6)]
        return plain_step(measured(tmp_path, steps + [usual(behind) for _ in range(22)]))

    found = plain(50.0, 60.0)
    assert (found.ms, found.near_ms, found.behind_ms) == (50.0, 60.0, 60.0)
    assert found.whole_ms == pytest.approx((7 * 50 + 22 * 60) / 29), "the first step is the program's start"
    assert plain(50.0, 51.0).ms == 50.0 and plain(50.0, 51.0).behind_ms is None, "hardly longer"
    slower = plain(60.0, 50.0)
    assert slower.ms == slower.near_ms == pytest.approx((7 * 60 + 22 * 50) / 29), "it had not settled"
    assert found.before == StepsBefore(7, 50.0, 50.0) and not found.far_apart
    assert plain(50.0, 74.0).ms == 50.0, "a profiler that stays has slowed hosts by 47 %"
    assert plain(50.0, 76.0).far_apart, "whether so much is the profiler's nobody knows"
    assert plain_step(measured(tmp_path, noisy(40))) == PlainStep.even(plain_step(measured(tmp_path, noisy(40))).ms)


def timed(took, recorded):
    """What `plain_step` reads of a run whose steps are alike, but for the recorded ones."""
    return SimpleNamespace(
        step_ms=took,
        timed=~recorded,
        like=~recorded,
        typical_steps=int((~recorded).sum()),
        numbers=np.arange(len(took)),
        by_turns=False,
    )


def test_steps_between_windows_are_none_without_the_profiler():
    """CUPTI stays there, also where it is ended behind the last window."""
    took = np.array([100.0] * 10 + [150.0] * 4 + [120.0] * 200 + [150.0] * 4 + [100.0] * 30)
    run = timed(took, recorded=took == 150.0)
    assert plain_step(run) == PlainStep.even(100.0)
    assert plain_step(run, on_gpu=False).ms > 115.0, "without a GPU nothing stays"
    ended = {"world_size": 1, "ranks": [{"rank": 0, "detached": {"done": True}}]}
    one, two = ({"skip_first": 6, "unprofiled": 2, "warmup": 2, "active": 4, "repeat": n} for n in (1, 30))
    assert plain_step(run, {**ended, "schedule": two}).ms == 100.0, "it stays between those of a schedule"
    assert plain_step(run, {**ended, "schedule": one}).ms > 115.0, "the second was asked for: it is ended behind each"


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_a_rank_does_behind_its_last_collective_its_peers_wait_for_in_the_next_step(tmp_path, ranks):
    """Of two ranks half of it was told, 26 % of a run for 53; of four nothing: the steps with it are their own."""
    steps = [noisy(200, seed=rank) for rank in range(ranks)]
    for at in range(5, 199, 5):
        steps[0][at] = Step(350, gc_ms=300, stacks={"forward": 50, "evaluate": 0})
        for rank in range(1, ranks):
            steps[rank][at + 1] = Step(350, stacks={"forward": 50, "backward": 300})
    run = measured(tmp_path, *steps)
    [collector] = [one for one in run.occasions if one.cause == "garbage_collection"]
    assert collector.ranks == (0,) and collector.times == 39
    assert collector.more_ms / 39 == pytest.approx(300, rel=0.03)
    assert not [one for one in run.occasions if one.cause == "unknown"]


def test_where_too_few_steps_lie_outside_of_the_windows_those_between_do_not_stand_for_them():
    """They had been disturbed; what the capture timed before its first window had not."""
    took = np.array([100.0] * 4 + [150.0] * 4 + [120.0] * 200 + [150.0] * 4 + [100.0])
    run = timed(took, recorded=took == 150.0)
    assert plain_step(run, {"unprofiled_step_ms": 101.0}) == PlainStep.even(101.0)
    assert plain_step(run) is None


def _generating(root, trained):
    steps = [Step(20, stacks={"backward": 10, "generate": 10} if trained else {"generate": 20}) for _ in range(200)]
    for at in range(24, 200, 25):
        steps[at] = Step(120, stacks={"generate": 120})
    write_rank(root, 0, steps)
    return [read_observed(str(root), 0)[0]]


def test_a_model_without_gradients_is_the_usual_work_of_a_program_that_trains_nothing(tmp_path):
    """Of a generate() loop each prompt's first pass was "a model called without gradients: evaluate less often"."""
    inferred = _generating(tmp_path / "inference", trained=False)
    assert {one.cause for one in whole_run(inferred, by_calls=True).occasions} == {"unknown"}
    trained = _generating(tmp_path / "training", trained=True)
    assert {one.cause for one in whole_run(trained, by_calls=True).occasions} == {"inference"}
    assert {one.cause for one in whole_run(inferred).occasions} == {"inference"}, "steps of an optimizer"


def test_a_function_is_rare_only_where_typical_steps_were_looked_at(tmp_path):
    """Steps of 2 ms, and no look in any but long ones: their loop was "a function that most steps do not call"."""
    steps = [Step(2) for _ in range(60)]
    for at in range(6, 60, 8):
        steps[at] = Step(12, stacks={"rare": 12})
    assert {one.cause for one in measured(tmp_path, steps).occasions} == {"unknown"}
