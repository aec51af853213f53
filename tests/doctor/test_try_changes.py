"""One change at a time, until one works, or the one that is worth it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from traceops.doctor.candidates import Situation, words
from traceops.doctor.model import EnvironmentChange, Trial
from traceops.doctor.try_changes import NoTime, SearchResult, TriedChange, try_changes

BROKEN = Situation("nccl", 4, failed=frozenset({"all_reduce"}))


def run(
    situation: Situation,
    gives: Callable[[EnvironmentChange], float | None],
    before: float | None = None,
    enough: float | None = None,
    tries: int = 1000,
) -> SearchResult:
    """gives: GB/s under a change, None where it does not work. tries: after which time is up."""
    count = 0

    def attempt(change: EnvironmentChange) -> TriedChange:
        nonlocal count
        count += 1
        if count > tries:
            raise NoTime
        gbs = gives(change)
        trial = Trial("all_reduce", "ok" if gbs else "hung", (0, 1), 1.0, 2.0, set=change.set, unset=change.unset)
        return TriedChange(change, (trial,), gbs)

    return try_changes(situation, attempt, before, enough)


def test_it_stops_at_the_first_change_that_works():
    done = run(BROKEN, lambda change: 300.0 if "NCCL_CUMEM_HOST_ENABLE" in change.set else None)
    assert done.chosen is not None and done.chosen.change.set == {"NCCL_CUMEM_HOST_ENABLE": "0"}
    assert done.tried[-1] is done.chosen and done.complete
    [remedy] = done.remedies(None)
    assert (remedy.after_gbs, remedy.before_gbs) == (300.0, None)


def test_one_that_works_but_is_slow_is_kept_until_a_fast_one_comes():
    def gives(change: EnvironmentChange) -> float | None:
        return {"NCCL_CUMEM_ENABLE": 40.0, "NCCL_NVLS_ENABLE": 300.0}.get(next(iter(change.set), ""))

    done = run(BROKEN, gives, enough=100.0)
    assert done.chosen is not None and done.chosen.change.set == {"NCCL_NVLS_ENABLE": "0"}
    assert [words(remedy.change) for remedy in done.remedies(None)] == ["NCCL_NVLS_ENABLE=0", "NCCL_CUMEM_ENABLE=0"]
    # Where nobody knows what to expect, working is enough.
    assert len(run(BROKEN, gives).tried) == 1


def test_pairs_come_after_all_single_ones():
    done = run(BROKEN, lambda change: 3.0 if len(change.set) == 2 and "NCCL_SHM_DISABLE" in change.set else None)
    assert done.chosen is not None and done.chosen.change.size == 2
    sizes = [one.change.size for one in done.tried]
    assert sizes == sorted(sizes)


def test_a_setting_at_fault_and_a_machine_at_fault_at_once():
    environ = {"NCCL_NET": "nosuch"}
    situation = Situation("nccl", 4, environ=environ, failed=frozenset({"start"}))

    def gives(change: EnvironmentChange) -> float | None:
        return 40.0 if "NCCL_NET" in change.unset and "NCCL_P2P_DISABLE" in change.set else None

    done = run(situation, gives)
    assert done.chosen is not None
    assert (done.chosen.change.set, done.chosen.change.unset) == ({"NCCL_P2P_DISABLE": "1"}, ("NCCL_NET",))


def test_what_was_found_before_time_is_up_counts():
    done = run(BROKEN, lambda change: 40.0 if "NCCL_CUMEM_ENABLE" in change.set else None, enough=100.0, tries=2)
    assert not done.complete and len(done.tried) == 2
    assert done.chosen is not None and done.chosen.gbs == 40.0
    assert run(BROKEN, lambda change: None, tries=0).chosen is None


@pytest.mark.parametrize(
    ("after", "again", "taken"), [(47.0, 40.0, False), (49.0, 40.0, True), (49.0, 42.0, False), (80.0, 70.0, True)]
)
def test_for_speed_a_change_must_be_worth_it(after, again, taken):
    """again: as the environment is, measured once more where jobs may differ so much by themselves."""
    situation = Situation("nccl", 4, environ={"NCCL_ALGO": "Ring"}, costly=("NCCL_ALGO",))
    done = run(situation, lambda change: after if change.size else again, before=40.0)
    assert (done.chosen is not None) is taken
    assert len(done.remedies(40.0)) == 1  # what was measured is told either way


def test_for_speed_nothing_is_advised_where_there_is_nothing_to_compare_with():
    situation = Situation("nccl", 4, environ={"NCCL_ALGO": "Ring"}, costly=("NCCL_ALGO",))
    assert run(situation, lambda change: 300.0, before=None).chosen is None


def test_for_speed_the_smaller_of_two_that_are_alike_is_taken():
    situation = Situation(
        "nccl", 4, environ={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, costly=("NCCL_ALGO", "NCCL_PROTO"), slow=True
    )

    def gives(change: EnvironmentChange) -> float | None:
        return {("NCCL_ALGO",): 41.0, ("NCCL_PROTO",): 90.0}.get(change.unset, 95.0 if len(change.unset) == 2 else 10.0)

    done = run(situation, gives, before=40.0, enough=100.0)
    assert done.chosen is not None and done.chosen.change.unset == ("NCCL_PROTO",)
    assert any(len(one.change.unset) == 2 for one in done.tried)
    assert any(one.change.set for one in done.tried)  # still slow: it went on


def test_a_costly_setting_without_which_nothing_works_stays():
    situation = Situation("nccl", 4, environ={"NCCL_P2P_DISABLE": "1"}, costly=("NCCL_P2P_DISABLE",))
    done = run(situation, lambda change: None, before=40.0)
    assert done.chosen is None and done.remedies(40.0) == ()


@pytest.mark.parametrize("broken", [True, False])
def test_what_holds_down_beside_what_was_found_goes_too(broken):
    """A needed removal that leaves another variable's cost, and two costly ones of which each hides the other."""
    environ = {"NCCL_SOCKET_IFNAME": "x", "NCCL_NET": "y", "NCCL_P2P_DISABLE": "1"}

    def gives(change: EnvironmentChange) -> float | None:
        if broken and "NCCL_SOCKET_IFNAME" not in change.unset:
            return None
        slow = {"NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE"} - set(change.unset)
        return 400.0 / 2 ** len(slow)

    failed = frozenset({"start"} if broken else ())
    costly = () if broken else tuple(sorted(environ))
    situation = Situation("nccl", 4, environ=environ, failed=failed, costly=costly)
    done = run(situation, gives, None if broken else 100.0, enough=300.0 if broken else 150.0)
    assert done.chosen is not None and done.chosen.gbs == 400.0
    assert set(done.chosen.change.unset) == {"NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE"}


def test_of_two_that_must_both_go_none_is_tried_alone_twice():
    situation = Situation("nccl", 4, environ={"NCCL_NET": "x", "NCCL_IB_HCA": "y"}, failed=frozenset({"start"}))
    done = run(situation, lambda change: 300.0 if len(change.unset) == 2 else None)
    assert done.chosen is not None and len(done.tried) == 3
