"""What the doctor tries when a test fails or is slow: which changes, in which order, with which variables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from changed import replace
from looks_help import one, put, wrong

from traceops.doctor.candidates import ALTERNATIVES, PAIRS, Situation, changes, pairs, removal, suspicious, words
from traceops.doctor.isolate import pair_order
from traceops.doctor.job import STAGES, Job, Rendezvous, WorkerTask, child_environment
from traceops.doctor.model import EnvironmentChange, Trial
from traceops.doctor.try_changes import NoTime, SearchResult, TriedChange, try_changes
from traceops.machine.look import HostContext
from traceops.machine.network import Interface, Port, Rdma, parse_choice
from traceops.machine.probe import nccl_files, parse_nccl_file
from traceops.machine.variables import as_number, known_variables
from traceops.rules.machine.variables import check_variables

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


ONE_HOST = Situation("nccl", 4, failed=frozenset({"all_reduce"}), transports=frozenset({"P2P/CUMEM"}))
TWO_HOSTS = replace(ONE_HOST, world=16, nodes=2, failed=frozenset({"start"}), transports=frozenset())


def tried(situation: Situation) -> list[str]:
    return [words(change) for change in changes(situation)]


@pytest.mark.parametrize("one", [*ALTERNATIVES, *PAIRS], ids=lambda one: words(one.change))
def test_every_alternative_says_what_it_does_and_costs_and_sets_what_nccl_reads(one):
    assert one.change.does and one.change.costs and one.change.set
    for name, value in one.change.set.items():
        assert known_variables().variables[name].takes(value), (name, value)
    assert one.change.set.get("NCCL_NVLS_ENABLE", "0") == "0"


def test_a_hang_inside_one_host_has_nothing_to_do_with_the_network():
    names = tried(replace(ONE_HOST, interfaces=("eth0",), hcas=("mlx5_0", "mlx5_1")))
    assert "NCCL_P2P_DISABLE=1" in names and "NCCL_CUMEM_ENABLE=0" in names and "NCCL_PROTO=Simple" in names
    assert not [name for name in names if "IB" in name or "SOCKET" in name or "PLUGIN" in name]
    assert names.index("NCCL_CUMEM_ENABLE=0") < names.index("NCCL_P2P_DISABLE=1") < names.index("NCCL_SHM_DISABLE=1")


def test_a_failed_start_may_be_the_interface_even_on_one_host():
    start = frozenset({"start"})
    failed = replace(ONE_HOST, failed=start, transports=frozenset(), interfaces=("eth0", "ib0"))
    names = tried(failed)
    assert names[:3] == ["NCCL_SOCKET_IFNAME==eth0", "NCCL_SOCKET_IFNAME==ib0", "NCCL_SOCKET_IFNAME=lo"]
    assert "NCCL_PROTO=Simple" not in names  # it never came to send anything
    # Where they had met and connected, and the first barrier hangs, the interface did its part.
    environ = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}
    names = tried(replace(ONE_HOST, failed=start, interfaces=("eth0",), environ=environ))
    assert names[:2] == ["without NCCL_ALGO", "NCCL_CUMEM_ENABLE=0"] and "NCCL_PROTO=Simple" in names
    assert not [name for name in names if "SOCKET" in name or "IB" in name or "PLUGIN" in name]
    over_sockets = replace(ONE_HOST, failed=start, environ=environ, transports=frozenset({"SHM", "NET/Socket"}))
    assert tried(over_sockets)[0] == "without NCCL_SOCKET_IFNAME"


def test_between_hosts_each_device_and_entry_but_not_loopback():
    names = tried(replace(TWO_HOSTS, interfaces=("eth0",), hcas=("mlx5_0", "mlx5_1")))
    assert {"NCCL_IB_HCA==mlx5_0", "NCCL_IB_HCA==mlx5_1", "NCCL_IB_GID_INDEX=3", "NCCL_IB_DISABLE=1"} <= set(names)
    assert "NCCL_SOCKET_IFNAME=lo" not in names
    assert not [name for name in tried(TWO_HOSTS) if "IB" in name]  # no such devices
    assert not [name for name in tried(replace(TWO_HOSTS, world=2)) if "P2P" in name or "SHM" in name]


def test_what_the_environment_sets_is_removed_first_and_what_it_says_already_is_not_tried():
    environ = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "x",
        "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "y",
        "NCCL_VERSION": "2.28.9-1",  # of the image; nobody reads it
    }
    situation = replace(ONE_HOST, environ=environ, transports=frozenset())
    assert suspicious(situation) == ("NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE")
    names = tried(situation)
    assert names[:2] == ["without NCCL_SOCKET_IFNAME", "without NCCL_P2P_DISABLE"]
    assert "NCCL_P2P_DISABLE=1" not in names and "NCCL_CUMEM_ENABLE=0" in names


def test_slow_is_met_by_what_may_be_faster_only():
    slow = Situation("nccl", 4, slow=True, transports=frozenset({"SHM"}))
    assert "NCCL_P2P_LEVEL=SYS" in tried(slow)
    assert not {"NCCL_SHM_DISABLE=1", "NCCL_P2P_DISABLE=1", "NCCL_CUMEM_ENABLE=0"} & set(tried(slow))
    assert "NCCL_P2P_DISABLE=1" in tried(replace(slow, transports=frozenset({"P2P/IPC"})))
    costly = Situation("nccl", 4, environ={"NCCL_ALGO": "Ring", "NCCL_NET": "IB"}, costly=("NCCL_ALGO",))
    assert tried(costly) == ["without NCCL_ALGO"]


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_multicast_is_left_as_somebody_chose_it(value):
    for base in (ONE_HOST, TWO_HOSTS, replace(ONE_HOST, failed=frozenset(), slow=True)):
        situation = replace(base, environ={"NCCL_NVLS_ENABLE": value})
        for change in (*changes(situation), *pairs(situation)):
            assert "NCCL_NVLS_ENABLE" not in change.unset
            assert change.set.get("NCCL_NVLS_ENABLE", "0") == "0"
    assert "NCCL_NVLS_ENABLE=0" in tried(ONE_HOST)


def test_gloo_knows_interfaces_only():
    situation = Situation(
        "gloo",
        2,
        environ={"GLOO_SOCKET_IFNAME": "x", "NCCL_NET": "IB"},
        interfaces=("eth0",),
        failed=frozenset({"start"}),
    )
    assert tried(situation) == ["without GLOO_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME=lo"]
    assert not list(pairs(situation))


def test_removing_says_what_it_frees_also_for_names_nobody_described():
    change = removal(("NCCL_NET", "NCCL_NEW_KNOB"), {"NCCL_NET": "IB", "NCCL_NEW_KNOB": "7"})
    assert change == EnvironmentChange(unset=("NCCL_NET", "NCCL_NEW_KNOB"), does=change.does, costs=change.costs)
    assert "choose the network" in change.does and "NCCL_NEW_KNOB=7" in change.does


GIDS = ((0, "IB/RoCE v1", "fe80::1"), (3, "RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0005"))
INTERFACES = (
    Interface("lo", 1, physical=False), Interface("eth0", 2, default=True), Interface("eth1", 3, up=False),
    Interface("docker0", 4, physical=False),
)  # fmt: skip
RDMA = tuple(Rdma(f"mlx5_{index}", (Port(1, "ACTIVE", 400.0, "Ethernet", GIDS),)) for index in (0, 1, 10))
HERE = HostContext(INTERFACES, RDMA, 4, ("GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"), "2.28.9", "2.11.0+cu130")


def said(context: HostContext = HERE, **environ: str) -> dict[str, str]:
    return wrong(check_variables(environ, "h", context))


def test_the_registry_agrees_with_itself() -> None:
    assert len(known_variables().variables) > 350
    assert all(new in known_variables().variables for new, _ in known_variables().renamed.values())
    assert not set(known_variables().unread) & set(known_variables().variables)
    assert not known_variables().unrelated & set(known_variables().variables)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "INIT,^NET", "NCCL_DEBUG_FILE": "/var/log/nccl.%h.%p"},
        {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
        {"NCCL_IB_HCA": "^=mlx5_10"},
        {"NCCL_IB_GID_INDEX": "3"},
        {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "", "NCCL_P2P_LEVEL": "SYS"},
        {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_IB_TIMEOUT": "22", "NCCL_BUFFSIZE": "0x800000"},
        {"CUDA_VISIBLE_DEVICES": "0,2"},
        {"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-cccc"},
        {"CUDA_VISIBLE_DEVICES": "MIG-5b1c"},
        {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        {"TORCH_HOME": "/x", "TORCH_CUDA_ARCH_LIST": "9.0", "NCCL_VERSION": "2.28.3-1", "CUDA_HOME": "/usr"},
        {"FI_PROVIDER": "efa", "OFI_NCCL_PROTOCOL": "RDMA"},
    ],
)
def test_settings_that_are_fine(environ: dict[str, str]) -> None:
    assert said(**environ) == {}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEBGU", "NCCL_DEBUG"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("TORCH_NCCL_IB_DISABLE", "NCCL_IB_DISABLE"),
        ("GLOO_SOCKET_IFACE", "GLOO_SOCKET_IFNAME"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
    ],
)
def test_a_misspelt_name_gets_the_right_one(name: str, right: str) -> None:
    looks = check_variables({name: "1"}, "h", HERE)
    assert wrong(looks) == {name: "warning"}
    assert one(looks, name).facts["right"] == right
    assert one(looks, name).advice.startswith(f"unset {name}; if {right} is meant: export {right}=")


def test_unknown_names_are_a_note_and_their_values_are_not_shown() -> None:
    looks = check_variables({"NCCL_OUR_PLUGIN_TOKEN": "hunter2", "NCCL_TIMEOUT": "hunter2"}, "h", HERE)
    assert wrong(looks) == {"NCCL_OUR_PLUGIN_TOKEN": "note", "NCCL_TIMEOUT": "warning"}
    assert "hunter2" not in repr(looks)
    assert "hunter2" not in repr(check_variables({"NCCL_SOCKET_IFNAMEE": "hunter2"}, "h", HERE))


def test_old_names_go_by_the_version_in_use() -> None:
    assert said(NCCL_ASYNC_ERROR_HANDLING="1") == {"NCCL_ASYNC_ERROR_HANDLING": "note"}
    old = HostContext(torch="2.7.1", nccl="2.26.2")
    assert said(TORCH_NCCL_TRACE_BUFFER_SIZE="2000") == {"TORCH_NCCL_TRACE_BUFFER_SIZE": "note"}
    assert said(old, TORCH_NCCL_TRACE_BUFFER_SIZE="2000") == {}
    assert said(NCCL_RMA_DISABLE="1") == {"NCCL_RMA_DISABLE": "note"}  # new in 2.30
    assert said(NCCL_GDRCOPY_TAIL_ENABLE="1") == {"NCCL_GDRCOPY_TAIL_ENABLE": "note"}  # gone after 2.11


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("NCCL_P2P_DISABLE", "true", "warning"),  # read as 0
        ("NCCL_P2P_LEVEL", "NVLINK", "warning"),
        ("NCCL_DEBUG", "INFOS", "warning"),
        ("NCCL_IB_TIMEOUT", "50", "note"),
        ("NCCL_ALGO", "Ringg", "error"),
        ("NCCL_PROTO", "^LL256", "error"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAILS", "error"),
        ("TORCH_NCCL_NAN_CHECK", "maybe", "error"),
    ],
)
def test_values_that_are_none(name: str, value: str, level: str) -> None:
    assert said(**{name: value}) == {name: level}


def test_words_nccl_does_not_know_were_ignored_before_2_24() -> None:
    assert said(HostContext(nccl="2.21.5"), NCCL_ALGO="Ringg") == {"NCCL_ALGO": "warning"}
    assert said(NCCL_ALGO="ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring") == {"NCCL_ALGO": "note"}
    assert said(NCCL_PROTO="^LL128;allreduce:LL128") == {"NCCL_PROTO": "note"}


def test_numbers_as_c_reads_them() -> None:
    assert [as_number(text) for text in ("1", " -2", "0x10", "010", "1abc", "08", "yes", "")] == [
        1, -2, 16, 8, 1, 0, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "warning"}),
        ({"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_LEVEL": "warning"}),
        ({"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "warning"}),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {"CUDA_LAUNCH_BLOCKING": "warning"}),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"TORCH_DISTRIBUTED_DEBUG": "warning"}),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, {"TORCH_NCCL_BLOCKING_WAIT": "warning"}),
        ({"NCCL_MAX_NCHANNELS": "1"}, {"NCCL_MAX_NCHANNELS": "warning"}),
        ({"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG": "warning"}),
        ({"NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "note"}),
    ],
)
def test_settings_that_cost_speed(environ: dict[str, str], found: dict[str, str]) -> None:
    assert said(**environ) == found


def test_a_setting_costs_nothing_where_there_is_nothing_to_lose() -> None:
    one_gpu = HostContext(INTERFACES, (), 1)
    assert said(one_gpu, NCCL_P2P_DISABLE="1") == {"NCCL_P2P_DISABLE": "note"}
    assert said(one_gpu, NCCL_IB_DISABLE="1") == {}
    efa = HostContext(INTERFACES, (Rdma("efa_0", (Port(1, "ACTIVE"),), None, "efa"),), 8)
    assert said(efa, NCCL_IB_DISABLE="1") == {}
    assert said(efa, FI_PROVIDER="tcp") == {"FI_PROVIDER": "warning"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_SOCKET_IFNAME": "enp"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "^eth,lo,docker"}, {"NCCL_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth0, eth1"}, {"NCCL_SOCKET_IFNAME": "warning"}),
        ({"NCCL_SOCKET_IFNAME": "eth0,ens5"}, {"NCCL_SOCKET_IFNAME": "note"}),
        ({"GLOO_SOCKET_IFNAME": "^lo"}, {"GLOO_SOCKET_IFNAME": "error"}),
        ({"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "docker0"}, {"GLOO_SOCKET_IFNAME": "note"}),
        ({"NCCL_IB_HCA": "mlx4"}, {"NCCL_IB_HCA": "warning"}),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_7"}, {"NCCL_IB_HCA": "warning"}),
        ({"NCCL_IB_HCA": "mlx5_1"}, {"NCCL_IB_HCA": "warning"}),  # takes mlx5_10 too
        ({"NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "warning", "NCCL_IB_DISABLE": "warning"}),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "error", "NCCL_IB_DISABLE": "warning"}),
        (
            {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"},
            {"NCCL_P2P_LEVEL": "warning", "NCCL_P2P_DISABLE": "warning"},
        ),
        ({"NCCL_IB_GID_INDEX": "0"}, {"NCCL_IB_GID_INDEX": "warning"}),
        ({"NCCL_IB_GID_INDEX": "7"}, {"NCCL_IB_GID_INDEX": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "0,1,4"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-eeee"}, {"CUDA_VISIBLE_DEVICES": "error"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "warning"}),
    ],
)
def test_contradictions(environ: dict[str, str], found: dict[str, str]) -> None:
    assert said(**environ) == found


def test_infiniband_by_name_where_there_is_none() -> None:
    assert said(HostContext(INTERFACES, (), 4), NCCL_NET="ib") == {"NCCL_NET": "error"}
    assert said(HostContext(INTERFACES, None, 4), NCCL_NET="IB") == {}  # nobody knows
    assert said(NCCL_NET="IB") == {}
    assert said(NCCL_P2P_DISABLE="0", NCCL_P2P_LEVEL="SYS") == {}


def test_p2p_and_shm_off_leave_the_network() -> None:
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert said(HostContext(INTERFACES, (), 4), **off)["P2P and SHM"] == "error"
    assert said(**off)["P2P and SHM"] == "warning"  # RDMA is faster than sockets
    assert "P2P and SHM" not in said(HostContext(INTERFACES, (), 1), **off)


def test_lists_of_interfaces_and_devices_are_read_as_nccl_reads_them() -> None:
    def takes(value: str, name: str, port: int = -1) -> bool:
        return parse_choice(value).takes(name, port)

    assert takes("eth", "eth10") and not takes("=eth1", "eth10")
    assert takes("^docker,lo", "eth0") and not takes("^docker,lo", "docker0")
    assert takes("^=docker0", "docker01")
    assert takes("mlx5_0:1", "mlx5_0", 1) and not takes("mlx5_0:1", "mlx5_0", 2)
    assert takes("=mlx5_0,mlx5_1:2", "mlx5_0", 2)


def test_files_that_set_variables_unseen(tmp_path: Path) -> None:
    files = {
        "etc/nccl.conf": "NCCL_DEBUG=WARN\nNCCL_P2P_DISABLE=1\n",
        "home/u/.nccl.conf": "# mine\nNCCL_SOCKET_IFNAME==eth0\nNCCL_DEBUG=INFO\nNCCL_OUR_TOKEN=hunter2\n",
    }
    found = nccl_files({"HOME": "/home/u"}, put(tmp_path, files))
    assert [path for path, _ in found] == ["/home/u/.nccl.conf", "/etc/nccl.conf"]
    looks = check_variables({"NCCL_SOCKET_IFNAME": "eth0"}, "h", HERE, found)
    assert wrong(looks) == {
        "/home/u/.nccl.conf": "note", "/etc/nccl.conf": "note", "NCCL_OUR_TOKEN": "note", "NCCL_P2P_DISABLE": "warning",
    }  # fmt: skip
    assert "the environment beats its NCCL_SOCKET_IFNAME" in one(looks, "/home/u/.nccl.conf").why
    assert "hunter2" not in repr(looks)
    other = nccl_files({"HOME": "/home/u", "NCCL_CONF_FILE": "/etc/other.conf"}, tmp_path)
    assert [path for path, _ in other] == ["/etc/nccl.conf"]


def test_a_line_of_such_a_file_keeps_its_blanks_and_the_first_one_wins() -> None:
    assert parse_nccl_file("NCCL_DEBUG=INFO \nNCCL_DEBUG=WARN\nnonsense\n") == {"NCCL_DEBUG": "INFO "}


_JOB = Job(
    tuple(STAGES), (2, 3), "nccl", {"NCCL_IB_DISABLE": "1"}, ("NCCL_SOCKET_IFNAME",), Rendezvous("node0", 4321, 2, 4),
    {"sweep": 7.0}, (1024, 4096), 3.0,
)  # fmt: skip


def test_a_post_survives_its_text() -> None:
    task = WorkerTask(_JOB, 3, "folder", 99)
    assert WorkerTask.from_text(task.to_text()) == task
    assert task.device == 3


def test_the_environment_is_the_users_but_for_the_launcher_the_change_and_the_log() -> None:
    environ = {
        "RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "CUDA_VISIBLE_DEVICES": "4,5", "NCCL_ALGO": "Tree",
        "NCCL_SOCKET_IFNAME": "bad0", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "precious.log",
    }  # fmt: skip
    child = child_environment(WorkerTask(_JOB, 3, "folder", 99), environ, Path("logs"))
    assert not {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "NCCL_SOCKET_IFNAME"} & set(child)
    kept = {name: child[name] for name in ("CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_DEBUG")}
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "4,5", "NCCL_ALGO": "Tree", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO"
    }  # fmt: skip
    assert Path(child["NCCL_DEBUG_FILE"]).parent == Path("logs")


@pytest.mark.parametrize("stages", [("all_reduce",), ("start", "sweep", "pairs"), ("start", "start"), ("start", "x")])
def test_stages_out_of_order_are_refused(stages: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        Job(stages, (0, 1), "gloo")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16])
def test_all_pairs_once_in_rounds_without_a_rank_twice(ranks: int) -> None:
    order = pair_order(ranks)
    assert sorted(order) == list(combinations(range(ranks), 2))
    in_a_round = ranks // 2
    for begin in range(0, len(order), in_a_round or 1):
        members = [rank for pair in order[begin : begin + in_a_round] for rank in pair]
        assert len(members) == len(set(members))


def test_many_ranks_test_neighbours_and_the_far_half() -> None:
    order = pair_order(64)
    assert len(order) == len(set(order)) == 96
    assert {(0, 1), (62, 63), (0, 63), (0, 32), (31, 63)} <= set(order)
