import sys
import threading
import time

import pytest

from traceops.capture.guard import Guard
from traceops.capture.schedule import NEVER, LaterWindow, LongerSchedule, Phase, Schedule
from traceops.capture.step_detector import Known, StepDetector
from traceops.capture.steps import Trainer, on_training_step
from traceops.core.errors import UsageError


@pytest.mark.parametrize(
    ("fired", "ends"),
    [
        ("aaaa", "1111"),  # one optimizer
        ("abababab", "10010101"),  # generator and discriminator: the step ends after the second
        ("abcabcabc", "100001001"),  # an optimizer a parameter
        ("aabbbb", "111111"),  # another training phase takes over
        ("aabcbcbc", "11100101"),  # one of two optimizers
        ("aababab", "1110010"),  # one that comes in addition
        ("aaaabbaaaacccc", "11111101111111"),  # a phase that comes back, and a new one
        ("abaaa", "10011"),  # the second one is skipped by a gradient scaler from now on
    ],
)
def test_several_optimizers_make_one_step(fired, ends):
    detector = StepDetector()
    assert "".join(str(int(detector.stepped(name))) for name in fired) == ends


@pytest.mark.parametrize(
    ("fired", "ends"),
    [
        ("bb a cc a dd a ee a ff a", "11 1 01 0 01 0 01 0 01 0"),  # each has one end already
        ("bbccdd a eeffgg a hhiijj a kkllmm a", "111111 1 011111 0 011111 1 000000 1"),  # the third shows it
        ("bbbb a cccc a dddd a eeee a ffff a", "1111 1 0111 0 0111 1 0000 1 0000 1"),
        ("aaa bbb aaa ccc aaa ddd aaa", "111 111 011 111 011 111 011"),  # phases that come back
        # It has stopped: another training begins, and is believed after twice the usual steps and eight more.
        (f"bbbb a cccc a dddd a eeee a {'z' * 24}", f"1111 1 0111 0 0111 1 0000 1 {'0' * 16}{'1' * 8}"),
    ],
)
def test_an_optimizer_that_steps_once_between_new_ones_ends_the_step(fired, ends):
    """Meta-learning: the copies' steps counted as the training's, and its own did not."""
    detector = StepDetector()
    told = "".join(" " if name == " " else str(int(detector.stepped(name))) for name in fired)
    assert told == ends


def test_optimizers_that_are_gone_are_forgotten():
    detector = StepDetector()
    outer, ends = type("Outer", (), {})(), 0
    for _ in range(500):
        for inner in [type("Inner", (), {})() for _ in range(2)]:
            detector.stepped(inner)
            detector.stepped(inner)
        ends += detector.stepped(outer)
    assert ends >= 497 and len(detector._outer._seen) < 100


@pytest.mark.parametrize("groups", [[[1], [2]], [{"lr": 0.1}], [{"params": iter(())}], None])
def test_param_groups_of_what_is_no_optimizer_are_left_alone(groups):
    """With `--step-on forward` it is a model, whose `param_groups` is whatever its author keeps there."""
    model = type("Model", (), {})()
    model.param_groups = groups
    detector = StepDetector()
    assert [detector.stepped(model) for _ in range(3)] == [True, True, True]


@pytest.mark.torch
@pytest.mark.parametrize("enabled", [True, False])
def test_an_iteration_that_a_gradient_scaler_skips_is_a_step(enabled):
    torch = pytest.importorskip("torch")
    module = sys.modules["torch.amp.grad_scaler"]
    before, ends, errors = module.GradScaler.update, [], []
    boundary = on_training_step(lambda: ends.append(1), Guard(lambda *what: errors.append(what)))
    try:
        weight = torch.zeros(2, requires_grad=True)
        optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([weight], lr=0.1)]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=enabled)
        for factor in (1.0, float("inf"), 1.0, float("inf"), float("inf"), 1.0):
            scaler.scale(weight.sum() * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            weight.grad = None
        assert len(ends) == 6
    finally:
        boundary.remove()
    assert not errors and module.GradScaler.update is before


@pytest.fixture
def watched():
    """A function that starts to watch, and what it saw."""
    boundaries, errors = [], []

    def start(**options):
        ends = []
        boundaries.append(on_training_step(lambda: ends.append(1), Guard(lambda *what: errors.append(what)), **options))
        return boundaries[-1], ends

    yield start
    for boundary in boundaries:
        boundary.remove()
    assert not errors


@pytest.mark.torch
def test_a_closure_of_lbfgs_makes_one_step_however_often_it_is_called(watched):
    torch = pytest.importorskip("torch")
    boundary, ends = watched()
    weight = torch.ones(3, requires_grad=True)
    optimizer, calls = torch.optim.LBFGS([weight], max_iter=4), []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(ends) == 3 < len(calls)
    assert boundary.ends().ends == {"LBFGS.step": 3}


@pytest.mark.torch
@pytest.mark.parametrize("by", ["method", "name of its own"])
def test_a_step_in_a_hook_of_backward_ends_behind_backward(watched, by):
    """A profiler that started or ended in the hook killed the program: SIGSEGV at its 14th step."""
    torch = pytest.importorskip("torch")
    from torch.autograd import backward

    run = backward if by == "name of its own" else torch.Tensor.backward
    whole = torch.autograd._engine_run_backward
    boundary, _ = watched()
    seen = []
    boundary._step = lambda: seen.append(torch._C._current_graph_task_id())
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def at_once(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(at_once)
    for _ in range(8):
        run(model(torch.ones(2, 4)).sum())
    assert seen == [-1] * 8
    boundary.remove()
    assert torch.autograd._engine_run_backward is whole
    model(torch.ones(2, 4)).sum().backward()
    assert len(seen) == 8


@pytest.mark.torch
def test_a_module_that_checkpointing_calls_again_ends_no_step(watched):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    boundary, _ = watched(step_on="forward")
    seen = []
    boundary._step = lambda: seen.append(torch._C._current_graph_task_id())
    inner = torch.nn.Linear(4, 4)

    class Model(torch.nn.Module):
        def forward(self, x):
            return checkpoint(inner, x, use_reentrant=False)

    model = Model()
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
    assert seen == [-1] * 4


@pytest.mark.torch
def test_inference_has_a_step_a_call_of_the_model(watched):
    torch = pytest.importorskip("torch")
    call = torch.nn.Module.__call__
    boundary, ends = watched(step_on="forward")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    for _ in range(4):
        model(torch.ones(1, 2))
    assert len(ends) == 4 and boundary.ends().ends == {"Sequential.forward": 4}
    boundary.remove()
    assert torch.nn.Module.__call__ is call


@pytest.mark.torch
def test_a_step_of_the_rpc_s_optimizer_counts_though_no_optimizer_of_torch_steps_here(watched, monkeypatch):
    pytest.importorskip("torch")
    optim = pytest.importorskip("torch.distributed.optim")  # imported before the boundary looks
    monkeypatch.setattr(optim.DistributedOptimizer, "step", lambda self, context: None)
    boundary, ends = watched()
    optimizer = object.__new__(optim.DistributedOptimizer)
    for context in range(5):
        optimizer.step(context)
    assert len(ends) == 5 and boundary.ends().ends == {"DistributedOptimizer.step": 5}


@pytest.mark.torch
def test_an_engine_s_step_counts_once_however_many_optimizer_steps_it_takes(watched, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    package = tmp_path / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "engine.py").write_text(
        "class DeepSpeedEngine:\n"
        "    def __init__(self, optimizer): self.optimizer = optimizer\n"
        "    def step(self): self._take_model_step()\n"
        "    def _take_model_step(self, lr_kwargs=None):\n"
        "        for _ in range(2): self.optimizer.step()\n"  # once a parameter group
    )
    monkeypatch.syspath_prepend(tmp_path)
    boundary, ends = watched()
    from deepspeed.runtime.engine import DeepSpeedEngine

    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    engine = DeepSpeedEngine(torch.optim.SGD([weight], lr=0.1))
    for _ in range(5):
        engine.step()
    assert len(ends) == 5 and boundary.ends().ends == {"DeepSpeedEngine.step": 5}
    boundary.remove()
    engine.step()
    assert len(ends) == 5
    for name in [name for name in sys.modules if name.startswith("deepspeed")]:
        del sys.modules[name]


def optimizer_class(torch, name, step=lambda self: None):
    """One of its own: torch wraps the step of each class once in a process."""
    return type(name, (torch.optim.Optimizer,), {"step": step})


@pytest.mark.torch
@pytest.mark.parametrize("fired", ["aaaaaa", "aaabbbbaaa", "abababab", "aababbaabb", "abcabcabc", "aabbccaabbcc"])
@pytest.mark.parametrize("short", [True, False])
def test_what_ends_a_step_is_decided_and_counted_alike_however_short_the_way(fired, short):
    """One optimizer alone goes a shorter way than the detector's: it has to come to the same."""
    torch = pytest.importorskip("torch")
    longer, passed, errors = [], [], []
    detector, expected, counted = StepDetector(), [], {"SGD.step": [0, 0], "Adam.step": [0, 0]}
    boundary = on_training_step(
        lambda: longer.append(1), Guard(lambda *what: errors.append(what)),
        passed=lambda: (passed.append(1), short)[1],
    )  # fmt: skip
    try:
        kinds = {"a": optimizer_class(torch, "SGD"), "b": optimizer_class(torch, "Adam")}
        kinds["c"] = kinds["a"]
        optimizers = {name: kinds[name]([torch.zeros(1, requires_grad=True)], {}) for name in sorted({*fired})}
        for name in fired:
            before = len(passed)
            optimizers[name].step()
            ended = detector.stepped(name)
            counted[f"{kinds[name].__name__}.step"][not ended] += 1
            expected.append(ended)
            assert len(passed) - before == ended
        assert len(longer) == (0 if short else sum(expected))
        told = boundary.ends()
        assert told.ends == {name: ends for name, (ends, _) in counted.items() if ends}
        assert told.within == {name: within for name, (_, within) in counted.items() if within}
    finally:
        boundary.remove()
    optimizers["a"].step()
    assert len(passed) == sum(expected) and not errors


@pytest.mark.torch
def test_an_optimizer_within_another_is_a_part_of_its_step_on_the_short_way_too(watched):
    torch = pytest.importorskip("torch")
    boundary, ends = watched()
    inner = optimizer_class(torch, "SGD")([torch.zeros(1, requires_grad=True)], {})
    for _ in range(3):
        inner.step()
    assert len(ends) == 3
    wrapper = optimizer_class(torch, "Wrapper", lambda self: inner.step())(inner.param_groups, {})
    for _ in range(4):
        wrapper.step()
    assert len(ends) == 7
    assert boundary.ends().ends == {"SGD.step": 3, "Wrapper.step": 4} and not boundary.ends().within


@pytest.mark.torch
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("kept", [True, False])
def test_optimizers_that_are_made_anew_end_as_many_steps_wherever_python_puts_them(watched, every, kept):
    """One was known by its address. Two ranks of one program counted 280 and 273 of 300 steps."""
    torch = pytest.importorskip("torch")
    boundary, ends = watched()
    weight, old = torch.zeros(1, requires_grad=True), []
    for _ in range(0, 20, every):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(every):
            optimizer.step()
        if kept:  # in a cycle, until the collector runs; with every == 1 all steps but the first were lost
            old.append(optimizer)
    assert len(ends) == 20 and boundary.ends().ends == {"SGD.step": 20}


@pytest.mark.torch
def test_one_of_two_optimizers_that_is_made_anew_loses_no_step(watched):
    torch = pytest.importorskip("torch")
    _, ends = watched()
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    first = torch.optim.SGD(weights[:1], lr=0.1)
    for _ in range(10):
        first.step()
        second = torch.optim.SGD(weights[1:], lr=0.1)
        second.step()
    assert len(ends) == 10


@pytest.mark.torch
def test_the_threads_of_a_sweep_are_trainings_of_their_own(watched):
    """Three threads with an optimizer each: 84 of 180 steps were seen, 59 counted, "steps are of two kinds"."""
    torch = pytest.importorskip("torch")
    boundary, ends = watched()
    turn = threading.Barrier(3)

    def train(number):
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1) if number else torch.optim.Adam([weight])
        for _ in range(20):
            for one in range(3):
                turn.wait(60)
                if one == number:
                    optimizer.step()
        turn.wait(60)  # a thread that has ended leaves its place to the others

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    told = boundary.ends()
    assert len(ends) == 20 and told.ends == {"Adam.step": 20}
    assert told.beside == {"SGD.step": 40} and not told.within


def test_the_first_step_counts_while_some_thread_starts(monkeypatch):
    """A thread that has not started yet has no number, and neither has the training before its first step."""
    taken = []
    trainer = Trainer(lambda: taken.append(1))
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), threading.Thread()])
    assert [trainer.is_other(False, steps) for steps in range(2)] == [False, False] and not taken


@pytest.mark.torch
def test_a_thread_that_trains_beside_optimizers_in_backward_is_another_training(watched):
    """Its first step made it the one whose steps count, as none of the others had told a thread."""
    torch = pytest.importorskip("torch")
    boundary, ends = watched()
    weights = [torch.ones(3, requires_grad=True) for _ in range(3)]
    optimizers = {id(one): torch.optim.SGD([one], lr=0.1) for one in weights}
    for one in weights:
        one.register_post_accumulate_grad_hook(lambda one: optimizers[id(one)].step())

    def trains():
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(7):
            weight.sum().backward()
            optimizer.step()

    for step in range(20):
        sum(one.sum() for one in weights).backward()
        if step in (3, 9):
            thread = threading.Thread(target=trains)
            thread.start()
            thread.join()
    assert boundary.ends().beside == {"SGD.step": 14}
    torch.ones(1, requires_grad=True).sum().backward()  # what came due in the last pass is done here
    assert len(ends) == 20


@pytest.mark.torch
def test_a_thread_that_trains_behind_the_first_one_is_counted(watched):
    torch = pytest.importorskip("torch")
    _, ends = watched()

    def train():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        for _ in range(30):
            optimizer.step()

    first = threading.Thread(target=train)
    first.start()
    first.join(60)
    assert len(ends) == 30
    train()
    assert len(ends) == 60, "the first thread has ended"


@pytest.mark.torch
def test_a_thread_that_goes_on_where_the_first_one_only_waits_is_counted(watched):
    """And where that comes again, its optimizer is another training's: they made steps of two kinds."""
    torch = pytest.importorskip("torch")
    boundary, ends = watched()

    def train(steps):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        for _ in range(steps):
            optimizer.step()
        return optimizer

    optimizer = train(5)
    second = threading.Thread(target=lambda: (train(150), wait.wait(600)))
    wait = threading.Event()
    second.start()
    deadline = time.monotonic() + 600
    while sum(map(sum, (boundary.ends().ends.values(), boundary.ends().beside.values()))) < 155:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    optimizer.step()
    wait.set()
    second.join(60)
    told = boundary.ends()
    assert told.beside == {"SGD.step": 101} and told.ends == {"SGD.step": 55} and not told.within
    assert len(ends) == 55


@pytest.mark.torch
def test_a_step_behind_which_a_hook_of_the_programs_raises_is_one_all_the_same(watched):
    torch = pytest.importorskip("torch")
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _, ends = watched()
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer, other = (torch.optim.SGD([weight], lr=0.1) for weight in weights)
    for _ in range(2):
        other.step()
        optimizer.step()
    before = len(ends)
    handle = register_optimizer_step_post_hook(lambda *all: 1 / 0)
    try:
        for one in (other, optimizer):
            with pytest.raises(ZeroDivisionError):
                one.step()
    finally:
        handle.remove()
    assert len(ends) == before + 1
    other.step()
    assert len(ends) == before + 1


class Thing:
    """Something that may be gone."""


class Slotted:
    """Python makes no weak reference to one."""

    __slots__ = ()


def test_numbers_come_in_order_and_none_comes_twice():
    known, things = Known(), [Thing(), Thing()]
    assert [known.number(thing) for thing in [*things, *things]] == [0, 1, 0, 1]
    for number in range(2, 40):
        thing = Thing()
        assert known.number(thing) == number and known.lives(number)
        del thing
        assert not known.lives(number)
    assert known.lives(0) and known.lives(1)


def test_nothing_is_kept_of_what_is_gone():
    known, thing = Known(), Thing()
    known.number(thing)
    reference = known.reference(thing)
    assert reference() is thing
    del thing
    assert reference() is None and not known._by_address and not known._living


def test_what_python_cannot_refer_to_weakly_has_a_number_too():
    known, things = Known(), [Slotted(), Slotted()]
    assert [known.number(thing) for thing in [*things, *things]] == [0, 1, 0, 1]
    assert known.reference(things[1])() is things[1] and known.lives(1)


def test_phases_and_windows_of_a_repeated_schedule():
    schedule = Schedule(skip_first=1, unprofiled=2, warmup=1, active=2, repeat=2)
    letters = "".join(schedule.phase(step).value[0] for step in range(13))
    assert letters == "suuwaauuwaadd"
    assert schedule.total_steps == 11
    assert [step for step in range(13) if schedule.ends_window(step)] == [5, 10]
    assert [schedule.window(step) for step in (0, 1, 5, 6, 10, 12)] == [0, 0, 0, 1, 1, 1]
    for window in range(schedule.repeat):
        for step in schedule.active_steps(window):
            assert (schedule.phase(step), schedule.window(step)) == (Phase.ACTIVE, window)


@pytest.mark.parametrize(
    "later", [(), (LaterWindow(2, 15, 1, 2), LaterWindow(3, 18, 0, 1)), (LaterWindow(2, 30, 2, 1),)]
)
def test_the_end_of_what_is_idle_is_the_next_step_that_is_timed_or_recorded(later):
    schedule = Schedule(skip_first=3, unprofiled=2, warmup=1, active=2, repeat=2)
    for window in later:
        schedule = LongerSchedule.of(schedule, window)
    due = [step for step in range(60) if schedule.phase(step) not in (Phase.SKIP, Phase.DONE)]
    for step in range(60):
        assert schedule.idle_until(step) == next((one for one in due if one >= step), NEVER)


@pytest.mark.parametrize(
    "values", [{"active": 0}, {"repeat": 0}, {"warmup": -1}, {"skip_first": 1.5}, {"active": True}]
)
def test_impossible_values_are_refused(values):
    with pytest.raises(UsageError, match="--" + next(iter(values)).replace("_", "-")):
        Schedule(**values)


def test_a_schedule_that_cannot_complete_names_the_numbers():
    schedule = Schedule(2, 4, 2, 4)
    schedule.check(12)
    with pytest.raises(UsageError, match=r"needs 12 steps.*only 11"):
        schedule.check(11)


def test_micro_batches_that_never_synchronise_in_the_window_are_refused():
    schedule = Schedule(skip_first=0, unprofiled=1, warmup=1, active=2)  # records steps 2 and 3
    schedule.check_sync(4)
    schedule.check_sync(1)
    with pytest.raises(UsageError, match=r"--grad-accum 8.*steps 2 to 3.*--active 8"):
        schedule.check_sync(8)
