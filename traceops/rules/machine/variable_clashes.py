"""TO-D404 to TO-D408: variables that cost speed, contradict each other, or do not fit this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import HostContext, Level, Look
from traceops.machine.network import Choice, Interface, Rdma, parse_choice, v2_index
from traceops.machine.variables import as_number, version_of
from traceops.rules.machine.limits import looked

COSTLY_VARIABLE = described("machine", "TO-D404", JudgedBy.DOCTOR)
COSTLY_RULES = (COSTLY_VARIABLE,)
_SHOWN = 80


class Costly(Struct, frozen=True):
    """A setting that costs speed. when: whether a value does. because: what of, by its key in words/looks.ini. needs:
    ``gpus`` (two of them), ``rdma``, ``ib`` (RDMA that is not EFA), or nothing."""

    name: str
    when: Callable[[str], bool]
    level: Level
    because: str
    needs: str = ""


def is_on(value: str) -> bool:
    """Whether NCCL takes a switch's value for on: any number but 0."""
    return bool(as_number(value))


def is_true(value: str) -> bool:
    """Whether torch takes a switch's value for on."""
    return value.strip().lower() in ("1", "y", "yes", "t", "true")


def _is(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().casefold() in {word.casefold() for word in words}


def _at_most(most: int) -> Callable[[str], bool]:
    return lambda value: 0 < (as_number(value) or 0) <= most


def _off(value: str) -> bool:
    return as_number(value) == 0


_COSTS = (
    Costly("NCCL_P2P_DISABLE", lambda value: as_number(value) == 1, "warning", "no_p2p", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("LOC", "0"), "warning", "no_p2p", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("NVL"), "note", "nvlink_only", "gpus"),
    Costly("NCCL_SHM_DISABLE", is_on, "warning", "no_shm", "gpus"),
    Costly("NCCL_IB_DISABLE", is_on, "warning", "no_rdma", "ib"),
    Costly("NCCL_NET", _is("Socket"), "warning", "no_rdma", "rdma"),
    Costly("NCCL_NET_GDR_LEVEL", _is("LOC", "0"), "warning", "no_gdr", "rdma"),
    Costly("NCCL_NVLS_ENABLE", _off, "note", "no_nvls", "gpus"),
    Costly("NCCL_CUMEM_ENABLE", _off, "note", "no_cumem", "gpus"),
    Costly("NCCL_PXN_DISABLE", is_on, "note", "no_pxn", "rdma"),
    Costly("NCCL_P2P_DIRECT_DISABLE", is_on, "note", "one_more_copy", "gpus"),
    Costly("NCCL_ALGO", bool, "note", "fixed_algorithm"),
    Costly("NCCL_PROTO", bool, "note", "fixed_protocol"),
    Costly("NCCL_MAX_NCHANNELS", _at_most(4), "warning", "few_channels"),
    Costly("NCCL_MAX_CTAS", _at_most(4), "warning", "few_channels"),
    Costly("NCCL_NTHREADS", _at_most(128), "note", "small_kernels"),
    Costly("NCCL_BUFFSIZE", _at_most(1 << 20), "note", "small_buffers"),
    Costly("NCCL_DEBUG", _is("TRACE"), "warning", "traces"),
    Costly("NCCL_DEBUG_SUBSYS", _is("ALL"), "note", "all_subsystems"),
    Costly("NCCL_CHECK_POINTERS", is_on, "note", "checks"),
    Costly("NCCL_IB_TIMEOUT", _off, "warning", "no_timeout", "rdma"),
    Costly("NCCL_IGNORE_DISABLED_P2P", is_on, "note", "hides_refusal", "gpus"),
    Costly("NCCL_GRAPH_FILE", bool, "note", "graph_file"),
    Costly("NCCL_TOPO_FILE", bool, "note", "topology_file"),
    Costly("CUDA_LAUNCH_BLOCKING", is_on, "warning", "blocking_launches"),
    Costly("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "warning", "compares_ranks"),
    Costly("TORCH_NCCL_BLOCKING_WAIT", is_true, "warning", "blocking_wait"),
    Costly("TORCH_NCCL_ASYNC_ERROR_HANDLING", _off, "warning", "no_end"),
    Costly("TORCH_NCCL_NAN_CHECK", is_true, "warning", "nan_check"),
    Costly("OFI_NCCL_MR_CACHE_DISABLE", is_true, "warning", "no_cache"),
    Costly("FI_HMEM_DISABLE_P2P", is_on, "warning", "no_gdr_at_all", "rdma"),
)  # fmt: skip


def costs(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """Those that are set and matter here."""
    families = {one.family for one in context.rdma or ()}
    looks = []
    for cost in _COSTS:
        value = set_.get(cost.name, "")
        if not value.strip() or not cost.when(value):
            continue
        if (cost.needs == "rdma" and not families) or (cost.needs == "ib" and not families & {"IB", "RoCE"}):
            continue
        level = cost.level
        if cost.needs == "gpus" and context.gpus is not None and context.gpus < 2:
            level = "note"
        looks.append(
            setting(
                host, "variables", "costly", cost.name, value,
                level=level, because=cost.because, maybe=level == "note",
            )
        )  # fmt: skip
    return looks


def setting(
    host: str, about: str, key: str, name: str, value: str, *, level: Level | None = None, **facts: Any
) -> Look:
    """A look at a variable whose value may be shown."""
    shown = value[:_SHOWN]
    return looked(host, about, key, {"value": shown}, level=level, name=name, value=shown, **facts)


# TO-D405: variables that name network interfaces.

INTERFACE_VARIABLE = described("machine", "TO-D405", JudgedBy.DOCTOR)
RULES = (INTERFACE_VARIABLE,)


def nccl_interfaces(value: str, context: HostContext, host: str) -> list[Look]:
    """Whether NCCL_SOCKET_IFNAME takes interfaces that work."""
    if context.interfaces is None:
        return []
    choice = parse_choice(value)
    taken = [one for one in context.interfaces if choice.takes(one.name)]
    there = [one.name for one in context.interfaces]
    best, name = _best(context.interfaces), "NCCL_SOCKET_IFNAME"
    look = partial(setting, host, "interface_variables", name=name, value=value, best=best, there=there)
    if not any(one.usable for one in taken):
        shown = [f"{one.name} ({'has no address' if one.up else 'down'})" for one in taken]
        return [look("nccl_down" if taken else "nccl_absent", taken=shown)]
    looks = []
    absent = [] if choice.leaves_out else missing(choice, there)
    if any(part != part.strip() for part in value.split(",")):
        looks.append(look("blanks", right="".join(value.split())))
    elif absent:
        looks.append(look("absent", absent=absent))
    if all(one.name == "lo" for one in taken if one.usable) and best not in (None, "lo"):
        looks.append(look("loopback"))
    return looks


def gloo_interfaces(value: str, context: HostContext, host: str) -> list[Look]:
    """Whether GLOO_SOCKET_IFNAME names interfaces that work."""
    if context.interfaces is None:
        return []
    usable = {one.name for one in context.interfaces if one.usable}
    wrong = [name for name in value.split(",") if name not in usable]
    best = _best(context.interfaces)
    look = partial(setting, host, "interface_variables", "gloo", "GLOO_SOCKET_IFNAME", value)
    return [look(absent=wrong, best=best)] if wrong else []


def _best(interfaces: tuple[Interface, ...]) -> str | None:
    """The interface to name: the default route's, else the first that is up, the loopback last."""
    usable = sorted((one for one in interfaces if one.usable), key=lambda one: (not one.default, one.name == "lo"))
    return usable[0].name if usable else None


def missing(choice: Choice, names: list[str]) -> list[str]:
    """Names of a list that fit nothing."""
    return [
        wanted
        for wanted, _ in choice.names
        if not any(name == wanted if choice.exact else name.startswith(wanted) for name in names)
    ]


RDMA_VARIABLE = described("machine", "TO-D406", JudgedBy.DOCTOR)
VISIBLE_DEVICES = described("machine", "TO-D407", JudgedBy.DOCTOR)
CONTRADICTION = described("machine", "TO-D408", JudgedBy.DOCTOR)
VARIABLE_CLASHES_RULES = (RDMA_VARIABLE, VISIBLE_DEVICES, CONTRADICTION)
_PICKS_ADDRESS = (2, 21)  # NCCL that finds the right RoCE address itself


def clashes(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """Everything that cannot work as set."""
    looks: list[Look] = []
    if set_.get("NCCL_SOCKET_IFNAME", "").strip():
        looks += nccl_interfaces(set_["NCCL_SOCKET_IFNAME"], context, host)
    if set_.get("GLOO_SOCKET_IFNAME", "").strip():
        looks += gloo_interfaces(set_["GLOO_SOCKET_IFNAME"], context, host)
    # NCCL and Gloo set to different interfaces: one of the two is mostly a mistake
    nccl, gloo = set_.get("NCCL_SOCKET_IFNAME", "").strip(), set_.get("GLOO_SOCKET_IFNAME", "").strip()
    if nccl and gloo and not any(parse_choice(nccl).takes(name) for name in gloo.split(",")):
        looks.append(setting(host, "interface_variables", "differ", "GLOO_SOCKET_IFNAME", gloo, nccl=nccl))
    if set_.get("NCCL_IB_HCA", "").strip():
        looks += _hca(set_["NCCL_IB_HCA"], set_, context, host)
    if set_.get("NCCL_IB_GID_INDEX", "").strip():
        looks += _address(set_["NCCL_IB_GID_INDEX"], context, host)
    if "CUDA_VISIBLE_DEVICES" in set_:
        looks += _visible(set_["CUDA_VISIBLE_DEVICES"], context, host)
    looks += _network(set_, context, host)
    # Find a distance for P2P beside a switch that turns P2P off.
    value = set_.get("NCCL_P2P_LEVEL", "").strip()
    if value not in ("", "LOC", "0") and as_number(set_.get("NCCL_P2P_DISABLE", "")) == 1:
        looks.append(setting(host, "contradictions", "level_unread", "NCCL_P2P_LEVEL", value))
    looks += _nothing_left(set_, context, host)
    provider = set_.get("FI_PROVIDER", "").strip()
    if provider and provider != "efa" and any(one.family == "EFA" for one in context.rdma or ()):
        looks.append(setting(host, "rdma_variables", "not_efa", "FI_PROVIDER", provider))
    return looks


def _hca(value: str, set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    if is_on(set_.get("NCCL_IB_DISABLE", "")):
        return [setting(host, "contradictions", "hca_unread", "NCCL_IB_HCA", value)]
    if context.rdma is None:
        return []
    there = [one.name for one in context.rdma]
    look = partial(setting, host, "rdma_variables", name="NCCL_IB_HCA", value=value, there=there)
    if not context.rdma:
        return [look("no_rdma")]
    choice = parse_choice(value)
    taken = [(one, port) for one in context.rdma for port in one.ports if choice.takes(one.name, port.number)]
    if not any(port.state == "ACTIVE" for _, port in taken):
        return [look("down" if taken else "absent")]
    looks = []
    absent = [] if choice.leaves_out else missing(choice, there)
    if absent:
        looks.append(look("some_absent", absent=absent))
    more = [] if choice.exact or choice.leaves_out else _more_than_named(choice, context.rdma)
    if more:
        looks.append(look("more", more=more))
    return looks


def _more_than_named(choice: Choice, devices: tuple[Rdma, ...]) -> list[str]:
    """Devices that a name takes along although another device is called exactly so: mlx5_1 and mlx5_10."""
    names = {one.name for one in devices}
    exact = {wanted for wanted, _ in choice.names if wanted in names}
    return [one.name for one in devices if one.name not in exact and any(one.name.startswith(name) for name in exact)]


def _address(value: str, context: HostContext, host: str) -> list[Look]:
    index = as_number(value)
    ports = [port for one in context.rdma or () for port in one.ports if port.layer == "Ethernet" and port.gids]
    if index is None or index < 0 or not ports:
        return []
    right, better = "unset", None
    if version_of(context.nccl or "2.21")[:2] < _PICKS_ADDRESS:
        better = next((found for port in ports if (found := v2_index(port)) is not None), None)
        right = "unknown" if better is None else "index"
    look = partial(setting, host, "rdma_variables", name="NCCL_IB_GID_INDEX", value=value, right=right, index=better)
    kinds = {{at: kind for at, kind, _ in port.gids}.get(index) for port in ports}
    if None in kinds:
        return [look("no_address")]
    return [look("old_address")] if any("v2" not in (kind or "") for kind in kinds) else []


def _visible(value: str, context: HostContext, host: str) -> list[Look]:
    look = partial(setting, host, "visible_devices", name="CUDA_VISIBLE_DEVICES")
    parts = [part.strip() for part in value.split(",")]
    if context.gpus is None or context.gpus == 0:
        return []
    if parts in ([""], ["-1"], ["NoDevFiles"]):
        return [look("hides_all", value=value or "''", gpus=context.gpus)]
    beyond = [part for part in parts if re.fullmatch(r"-?\d+", part) and not 0 <= int(part) < context.gpus]
    beyond += [
        part for part in parts
        if context.uuids and part.startswith("GPU-") and not any(uuid.startswith(part) for uuid in context.uuids)
    ]  # fmt: skip
    if beyond:
        right = ",".join(str(index) for index in range(context.gpus))
        return [look("absent", value=value, absent=beyond, right=right)]
    return [look("twice", value=value)] if len(set(parts)) < len(parts) else []


def _network(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """InfiniBand demanded by name where it is switched off or not there: NCCL then takes nothing in its place."""
    value = set_.get("NCCL_NET", "").strip()
    if value.casefold() != "ib":
        return []
    off = is_on(set_.get("NCCL_IB_DISABLE", ""))
    if not off and context.rdma != ():
        return []
    return [setting(host, "contradictions", "ib_off" if off else "no_ib", "NCCL_NET", value)]


def _nothing_left(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    no_p2p = as_number(set_.get("NCCL_P2P_DISABLE", "")) == 1 or set_.get("NCCL_P2P_LEVEL", "").strip() in ("LOC", "0")
    if not (no_p2p and is_on(set_.get("NCCL_SHM_DISABLE", ""))) or (context.gpus is not None and context.gpus < 2):
        return []
    return [looked(host, "contradictions", "nothing_left", level="warning" if context.rdma else None)]
