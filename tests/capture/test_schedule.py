import pytest

from traceops.capture.schedule import NEVER, LaterWindow, LongerSchedule, Phase, Schedule
from traceops.core.errors import UsageError


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
