"""Chooses which changes to try, and in what order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from traceops.doctor.alternatives import ALTERNATIVES, PAIRS, WHAT_IT_HOLDS, Alternative, infiniband
from traceops.doctor.model import EnvironmentChange
from traceops.doctor.situation import Situation
from traceops.machine.variables import known_variables

# Left alone whoever set them: they only tell, or (multicast through NVSwitch) hang hosts where they are switched on.
_LEFT_ALONE = ("NCCL_NVLS_ENABLE", "NCCL_CONF_FILE", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT")
# Images set names such as NCCL_VERSION that nobody reads: of these only the known ones count.
_READ_BY = {"nccl": ("NCCL_", "OFI_NCCL_", "FI_", "UCX_"), "gloo": ("GLOO_",)}
_OF_THE_NETWORK = (
    "NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_", "NCCL_NSOCKS_", "NCCL_OOB_", "NCCL_CROSS_NIC", "OFI_NCCL_", "FI_", "UCX_",
)  # fmt: skip
_ONLY_TELL = ("NCCL_DEBUG", "NCCL_TOPO_DUMP", "NCCL_GRAPH_DUMP", "NCCL_DESYNC", "NCCL_TRACE", "NCCL_RAS")


def suspicious(situation: Situation) -> tuple[str, ...]:
    """Variables of the environment that the library reads and that may be at fault, the likeliest first.

    Where something is broken that is the interface; where all works, what is known to cost speed.
    """
    prefixes = _READ_BY.get(situation.backend, ())
    named = [
        name
        for name in sorted(situation.environ)
        if name.startswith(prefixes)
        and name in known_variables().variables
        and not is_left_alone(name)
        and not (situation.inside_only and situation.broken and name.startswith(_OF_THE_NETWORK))
    ]
    sockets_first = sorted(named, key=lambda name: (not name.endswith("SOCKET_IFNAME"), name))
    costly = [name for name in situation.costly if name in named]
    return tuple(dict.fromkeys(sockets_first + costly if situation.broken else costly + sockets_first))


def words(change: EnvironmentChange) -> str:
    """The change as the user would say it: ``NCCL_PROTO=Simple, without NCCL_NET``."""
    return ", ".join(
        [*(f"{name}={value}" for name, value in change.set.items()), *(f"without {n}" for n in change.unset)]
    )


def removal(names: tuple[str, ...], environ: Mapping[str, str]) -> EnvironmentChange:
    """The change that removes variables of the environment."""
    does = [
        WHAT_IT_HOLDS.get(name, f"leaves to the library what {name}={environ.get(name, '')} fixes") for name in names
    ]
    return EnvironmentChange(unset=names, does="; ".join(does), costs="nothing, unless somebody set it for a reason")


def changes(situation: Situation) -> Iterator[EnvironmentChange]:
    """Single changes to try, the smallest and cheapest first, for what is broken or slow; none twice."""
    removed = suspicious(situation) if situation.broken or situation.slow else situation.costly
    yield from (removal((name,), situation.environ) for name in removed if not is_left_alone(name))
    listed = (one.change for one in ALTERNATIVES if _may_help(one, situation))
    for change in chain(_interfaces(situation), _hcas(situation), listed):
        if _is_new(change, situation):
            yield change


def pairs(situation: Situation) -> Iterator[EnvironmentChange]:
    """Changes of two variables, for when no single one works."""
    for one in PAIRS:
        if _may_help(one, situation) and _is_new(one.change, situation):
            yield one.change


def _may_help(one: Alternative, situation: Situation) -> bool:
    return (situation.broken and one.broken(situation)) or (situation.slow and one.slow(situation))


def _is_new(change: EnvironmentChange, situation: Situation) -> bool:
    """Not what the environment says already, and never against a multicast that somebody chose."""
    if "NCCL_NVLS_ENABLE" in change.set and "NCCL_NVLS_ENABLE" in situation.environ:
        return len(change.set) > 1 and situation.environ["NCCL_NVLS_ENABLE"] != "0"
    return any(situation.environ.get(name) != value for name, value in change.set.items())


def _interfaces(situation: Situation) -> Iterator[EnvironmentChange]:
    """Another network interface: NCCL and gloo meet over one even on a single host."""
    not_met = "start" in situation.failed and not situation.inside_only
    over_it = not_met or (situation.nodes > 1 and (situation.broken or situation.slow))
    if situation.backend == "gloo":
        over_it = situation.broken or (situation.slow and situation.nodes > 1)
    if not over_it:
        return
    name = "GLOO_SOCKET_IFNAME" if situation.backend == "gloo" else "NCCL_SOCKET_IFNAME"
    exactly = "" if situation.backend == "gloo" else "="  # NCCL takes a bare name as a beginning of names
    for interface in situation.interfaces:
        yield EnvironmentChange(
            {name: exactly + interface},
            does=f"uses the network interface {interface}",
            costs="nothing if all hosts reach each other over it",
        )
    if situation.nodes == 1:
        yield EnvironmentChange({name: "lo"}, does="uses the loopback interface", costs="works inside one host only")


def _hcas(situation: Situation) -> Iterator[EnvironmentChange]:
    """Another InfiniBand or RoCE device, where there are several."""
    if len(situation.hcas) > 1 and situation.nodes > 1 and infiniband(situation):
        for hca in situation.hcas:
            yield EnvironmentChange(
                {"NCCL_IB_HCA": f"={hca}"},
                does=f"uses the network device {hca} only",
                costs="the bandwidth of the other devices",
            )


def is_left_alone(name: str) -> bool:
    """Whether a variable is never removed, whoever set it."""
    return name in _LEFT_ALONE or name.startswith(_ONLY_TELL)
