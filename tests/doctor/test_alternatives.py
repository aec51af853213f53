"""What is tried fits what failed, the least costly first, and every change says what it does and costs."""

from __future__ import annotations

import pytest
from changed import replace

from traceops.doctor.candidates import ALTERNATIVES, PAIRS, Situation, changes, pairs, removal, suspicious, words
from traceops.doctor.model import EnvironmentChange
from traceops.machine.variables import known_variables

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
