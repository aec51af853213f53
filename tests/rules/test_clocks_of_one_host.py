"""TO-V006 where traces of two jobs that ran at once on one host are taken for one run: a real case."""

import json

from fault_runs import unpacked

from traceops.pipeline.analyze import analyze


def said(folder):
    return next((one for one in analyze(folder).findings if one.rule == "TO-V006"), None)


def test_traces_of_two_jobs_at_once_do_not_have_one_clock(tmp_path):
    """Rank 0 of the one and rank 1 of the other: their collectives are 43 ms apart, and fit once clocks are moved."""
    found = said(unpacked("two_jobs", tmp_path))
    assert (found.severity, found.confidence, found.cause, found.ranks) == ("info", "medium", "one_host", (0, 1))
    assert "the collectives of rank 1 end 42.9 ms before those of rank 0" in found.message
    assert "a folder of its own" in found.advice


def test_hosts_of_several_names_may_have_several_clocks(tmp_path):
    folder = unpacked("two_jobs", tmp_path)
    [second] = folder.glob("vm_503.*")
    second.rename(folder / second.name.replace("vm_", "other_"))
    assert said(folder) is None


def test_a_run_that_tells_of_its_traces_may_be_of_hosts_with_one_name(tmp_path):
    folder = unpacked("two_jobs", tmp_path)
    (folder / "run.json").write_text(json.dumps({"world_size": 2}))
    assert said(folder) is None
