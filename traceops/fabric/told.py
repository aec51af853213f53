"""What a log of NCCL could have told: whether anything follows from what is missing in it."""

from __future__ import annotations

from traceops.fabric.model import Machine
from traceops.fabric.nccl import NcclLog, NcclSetting, NetworkEventKind

# NCCL itself says that it has no network: it does not go on over another one.
_NOTHING_LEFT: tuple[NetworkEventKind, ...] = ("no_interface", "no_network")

_TO_SOCKETS = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "SOCKET"))


def has_no_network(log: NcclLog) -> bool:
    """Whether NCCL says outright that it has no network; that one plugin failed does not mean it."""
    return any(event.kind in _NOTHING_LEFT for event in log.network_events)


def failed_are_informed(log: NcclLog) -> bool:
    """Whether the processes whose plugin failed wrote INFO lines too, among which the network in use would be."""
    failed = {(event.host, event.pid) for event in log.network_events if event.failed}
    return bool(failed) and failed <= log.informed


def all_ranks_told(log: NcclLog) -> bool:
    """Whether every rank of every communicator of several has a connection in the log."""
    return all(
        not communicator.at_least
        and {rank for one in communicator.connections for rank in (one.source, one.destination)}
        >= set(range(communicator.size))
        for communicator in log.communicators
        if communicator.size > 1
    )


def why_not_told(log: NcclLog) -> str:
    """Why nothing follows from the absence of connections over the network; empty where something does."""
    several = [communicator for communicator in log.communicators if communicator.size > 1]
    if any(communicator.connections for communicator in several):
        return ""
    only_sockets = {network.plugin for network in log.networks} == {"Socket"}
    if several or (not log.communicators and only_sockets):
        return "the log holds no connection between ranks: it was cut, or NCCL_DEBUG_SUBSYS leaves them out"
    return ""


def names_all_nics(machine: Machine, log: NcclLog) -> bool:
    """Whether a matrix or a look at the machine says what it has; NCCL's log and XML say only what it may use."""
    others = set(machine.sources) - set(log.files)
    return not machine.sources or any(not source.endswith(".xml") for source in others)


def asked_for_sockets(log: NcclLog) -> list[NcclSetting]:
    """The settings that the log tells of and that choose sockets, each variable once."""
    found: dict[str, NcclSetting] = {}
    for setting in log.settings:
        if any(setting.name == name and setting.value.strip().upper().startswith(value) for name, value in _TO_SOCKETS):
            found.setdefault(setting.name, setting)
    return list(found.values())
