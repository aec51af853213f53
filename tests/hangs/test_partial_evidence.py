"""What is not in the evidence is not claimed: starts that were not recorded, groups not used yet, unknown counts."""

from generated_hang import Fault, Job, Step, dumps, run, write

from traceops.hangs.diagnose import diagnose


def job_of(world, groups, program):
    """A job whose ranks all keep this order of (group, operation)."""
    return Job(world, [Step(group, groups[group], op) for group, op in program], groups, ahead=0)


def test_ranks_that_record_no_starts_are_not_taken_for_gpus_that_hang(tmp_path):
    groups = {"world": tuple(range(4))}
    fault = Fault("network", 0, 5)
    job = run(job_of(4, groups, [("world", "all_reduce")] * 8), [fault])
    contents = dumps(job, [fault]) | {rank: dumps(job, [fault], timed=False)[rank] for rank in (1, 3)}

    (root,) = diagnose(write(tmp_path, contents)).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H006", (0, 1, 2, 3), "low")
    assert "starts were not recorded" in root.message


def test_starts_recorded_and_none_seen_is_no_proof_of_a_network_that_hangs(tmp_path):
    groups = {"world": (0, 1)}
    faults = [Fault("gpu", 0, 5), Fault("gpu", 1, 5)]
    job = run(job_of(2, groups, [("world", "all_reduce")] * 8), faults)

    (root,) = diagnose(write(tmp_path, dumps(job, faults))).roots

    assert (root.rule, root.confidence, root.cause) == ("TO-H006", "low", None)
    assert "not recorded" not in root.message


def test_a_rank_that_has_not_used_the_group_of_all_is_of_the_same_job(tmp_path):
    groups = {"world": tuple(range(4)), "tp0": (0, 1), "tp1": (2, 3)}
    program = [("tp0", "all_reduce"), ("tp1", "all_reduce")] * 4 + [("world", "all_reduce")] * 3
    fault = Fault("host", 3, 5)
    job = run(job_of(4, groups, program), [fault])

    found = diagnose(write(tmp_path, dumps(job, [fault])))

    assert found.evidence.problems == ()
    assert [(root.rule, root.ranks, root.confidence) for root in found.roots] == [("TO-H001", (3,), "high")]
    assert found.roots[0].waiting == (0, 1, 2)


def test_groups_alone_without_the_group_of_all_are_one_job(tmp_path):
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    program = [("tp0", "all_reduce"), ("tp1", "all_reduce"), ("dp0", "all_reduce"), ("dp1", "all_reduce")] * 3
    fault = Fault("host", 2, 5)
    job = run(job_of(4, groups, program), [fault])

    found = diagnose(write(tmp_path, dumps(job, [fault])))

    assert found.evidence.problems == ()
    assert [(root.rule, root.ranks) for root in found.roots] == [("TO-H001", (2,))]


def test_a_rank_that_never_used_the_group_in_which_others_wait_is_the_one(tmp_path):
    groups = {"world": (0, 1, 2), "late": (0, 1)}
    fault = Fault("host", 1, 3)
    job = run(job_of(3, groups, [("world", "all_reduce")] * 3 + [("late", "broadcast")]), [fault])

    (root,) = diagnose(write(tmp_path, dumps(job, [fault]))).roots

    assert (root.rule, root.ranks, root.op, root.sequence) == ("TO-H001", (1,), "broadcast", 1)


def test_what_no_count_tells_is_said_with_doubt(tmp_path):
    """Only unfinished operations, and none of this group: finished, or never called."""
    groups = {"world": (0, 1, 2)}
    fault = Fault("host", 1, 4)
    job = run(job_of(3, groups, [("world", "all_reduce")] * 6), [fault])
    contents = dumps(job, [fault], active_only=True)
    contents[1]["pg_status"] = {"7": {"last_enqueued_collective": 3}}
    contents[1]["pg_config"]["1"] = {"name": "1", "desc": "TP", "ranks": "[1]"}

    (root,) = diagnose(write(tmp_path, contents)).roots

    assert (root.ranks, root.confidence) == ((1,), "low")
    assert "perhaps never called" in root.message
