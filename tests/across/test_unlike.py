"""Steps that are no measure of the others: what one rank does once is no cost of every step."""

import pytest
from generated_run import Size, SlowHost, ddp, fsdp2, simulate, write_traces

from traceops.core.claims import claim_of
from traceops.measure.steps import spells
from traceops.pipeline.analyze import analyze
from traceops.rules.steps import LongSteps

SIZE = Size(kernel_us=60.0)


def report_of(folder, builder, steps, ranks, who, position, where):
    """A run in which these ranks' hosts are busy for 100 ms once, before the launch that `where` picks."""
    program = builder(steps=steps, size=SIZE)
    number = program.numbers[1:][position]
    faults = [SlowHost(rank, 100_000.0, where, steps=(number,)) for rank in who]
    write_traces(simulate(program, ranks, faults, seed=1), folder)
    return analyze(folder), number


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The step of the same run in which nothing happens, ms."""
    folders = {}

    def of(builder, ranks):
        if (builder, ranks) not in folders:
            folder = tmp_path_factory.mktemp("usual")
            folders[builder, ranks] = report_of(folder, builder, 3, ranks, (), 0, "")[0].summary.step_time_ms
        return folders[builder, ranks].typical

    return of


# What a rank does after its last collective of a step holds the others up in the next one.
@pytest.mark.parametrize("where", ["", "optimizer"], ids=["first", "last"])
@pytest.mark.parametrize(
    "builder, ranks, who, steps, position",
    [
        (ddp, 2, (0,), 3, 0),
        (ddp, 2, (0,), 3, 1),
        (ddp, 2, (0,), 3, 2),
        (fsdp2, 2, (0,), 3, 1),
        (fsdp2, 2, (1,), 4, 1),
        (ddp, 2, (0,), 4, 2),
        (ddp, 4, (0,), 3, 1),
        (ddp, 4, (0, 1), 3, 1),
        (ddp, 4, (1, 2, 3), 3, 1),
        (fsdp2, 4, (1, 2, 3), 4, 0),
    ],
)
def test_an_evaluation_in_one_step_is_not_in_the_typical_one(
    tmp_path, usual, builder, ranks, who, steps, position, where
):
    report, number = report_of(tmp_path / "run", builder, steps, ranks, who, position, where)
    step = report.summary.step_time_ms
    assert number in step.unlike
    assert set(step.unlike) <= {number, number + 1}
    assert step.typical == pytest.approx(usual(builder, ranks), rel=0.1)
    assert not [found for found in report.findings if found.severity == "error"]
    [told] = [found for found in report.findings if found.rule == "TO-T001"]
    assert told.severity == "info"
    assert claim_of(told, LongSteps).share is None


def test_a_rank_that_is_late_in_every_step_makes_none_unlike(tmp_path):
    program = ddp(steps=4, size=SIZE)
    write_traces(simulate(program, 2, [SlowHost(1, 5_000.0)], seed=1), tmp_path / "run")
    report = analyze(tmp_path / "run")
    assert report.summary.step_time_ms.unlike == ()
    assert [found.ranks for found in report.findings if found.rule == "TO-S001"] == [(1,)]


@pytest.mark.parametrize(
    "odd, times", [([], 0), ([False], 0), ([True], 1), ([True, True, False, True], 2), ([False, True, True], 1)]
)
def test_neighbouring_steps_are_one_time(odd, times):
    assert spells(odd) == times
