"""TO-D404 to TO-D408: variables that cost speed, contradict each other, or do not fit this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from traceops.core.rule import JudgedBy, Rule, described
from traceops.machine.look import HostContext, Level, Look
from traceops.machine.network import Choice, Interface, Rdma, parse_choice, v2_index
from traceops.machine.variables import as_number, version_of

COSTLY_VARIABLE = described("machine", "TO-D404", JudgedBy.DOCTOR)
COSTLY_RULES = (COSTLY_VARIABLE,)
_SHOWN = 80


class Costly(Struct, frozen=True):
    """A setting that costs speed. when: whether a value does.

    needs: ``gpus`` (two of them), ``rdma``, ``ib`` (RDMA that is not EFA), or nothing.
    """

    name: str
    when: Callable[[str], bool]
    level: Level
    why: str
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
    Costly("NCCL_P2P_DISABLE", lambda value: as_number(value) == 1, "warning",
         "no direct access between GPUs: all goes through host memory, several times slower than NVLink", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("LOC", "0"), "warning",
         "no direct access between GPUs: all goes through host memory, several times slower than NVLink", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("NVL"), "note", "GPUs without NVLink between them go through host memory", "gpus"),
    Costly("NCCL_SHM_DISABLE", is_on, "warning",
         "GPUs that cannot reach each other directly use the network, even on one host", "gpus"),
    Costly("NCCL_IB_DISABLE", is_on, "warning", "RDMA devices are there and not used: sockets between hosts", "ib"),
    Costly("NCCL_NET", _is("Socket"), "warning", "RDMA devices are there and not used: sockets between hosts", "rdma"),
    Costly("NCCL_NET_GDR_LEVEL", _is("LOC", "0"), "warning", "no GPUDirect RDMA: data go through the host", "rdma"),
    Costly("NCCL_NVLS_ENABLE", _off, "note", "no reductions in NVSwitch; some hosts ask for that", "gpus"),
    Costly("NCCL_CUMEM_ENABLE", _off, "note", "no cuMem buffers, which NVLS needs", "gpus"),
    Costly("NCCL_PXN_DISABLE", is_on, "note", "data cannot leave over the NIC near another GPU", "rdma"),
    Costly("NCCL_P2P_DIRECT_DISABLE", is_on, "note", "one more copy where one process has several GPUs", "gpus"),
    Costly("NCCL_ALGO", bool, "note", "a fixed algorithm is not the fastest for all sizes; meant for debugging"),
    Costly("NCCL_PROTO", bool, "note", "a fixed protocol is not the fastest for all sizes; meant for debugging"),
    Costly("NCCL_MAX_NCHANNELS", _at_most(4), "warning", "few channels cannot fill NVLink or several NICs"),
    Costly("NCCL_MAX_CTAS", _at_most(4), "warning", "few channels cannot fill NVLink or several NICs"),
    Costly("NCCL_NTHREADS", _at_most(128), "note", "small kernels move less"),
    Costly("NCCL_BUFFSIZE", _at_most(1 << 20), "note", "small buffers: the default is 4 MiB"),
    Costly("NCCL_DEBUG", _is("TRACE"), "warning", "every call is written out"),
    Costly("NCCL_DEBUG_SUBSYS", _is("ALL"), "note", "with NCCL_DEBUG=INFO every call is written out"),
    Costly("NCCL_CHECK_POINTERS", is_on, "note", "checks each call's pointers"),
    Costly("NCCL_IB_TIMEOUT", _off, "warning", "a lost packet is waited for for ever", "rdma"),
    Costly("NCCL_IGNORE_DISABLED_P2P", is_on, "note", "hides that CUDA refuses P2P over NVLink", "gpus"),
    Costly("NCCL_GRAPH_FILE", bool, "note", "paths from a file, whatever this machine has"),
    Costly("NCCL_TOPO_FILE", bool, "note", "a topology from a file, whatever this machine has; right on some clouds"),
    Costly("CUDA_LAUNCH_BLOCKING", is_on, "warning", "the host waits for every kernel: nothing overlaps"),
    Costly("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "warning", "every collective is compared across ranks first"),
    Costly("TORCH_NCCL_BLOCKING_WAIT", is_true, "warning", "the host waits in wait(): communication overlaps less"),
    Costly("TORCH_NCCL_ASYNC_ERROR_HANDLING", _off, "warning",
         "after an error of NCCL the job hangs in place of ending"),
    Costly("TORCH_NCCL_NAN_CHECK", is_true, "warning", "reads all that is sent once more"),
    Costly("OFI_NCCL_MR_CACHE_DISABLE", is_true, "warning", "registers memory anew for each transfer"),
    Costly("FI_HMEM_DISABLE_P2P", is_on, "warning", "no GPUDirect RDMA", "rdma"),
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
        advice = f"unset {cost.name}" + (", unless it is there for a reason" if level == "note" else "")
        looks.append(setting(host, cost.name, value, level, cost.why, advice, rule=COSTLY_VARIABLE))
    return looks


def setting(host: str, name: str, value: str, level: Level, why: str, advice: str, *, rule: Rule) -> Look:
    """A Look on a variable whose value may be shown."""
    return Look(host, "environment", name, value[:_SHOWN], level, why, advice, {"value": value[:_SHOWN]}, rule=rule.id)


# TO-D405: variables that name network interfaces.


INTERFACE_VARIABLE = described("machine", "TO-D405", JudgedBy.DOCTOR)
RULES = (INTERFACE_VARIABLE,)


def nccl_interfaces(value: str, context: HostContext, host: str) -> list[Look]:
    """Whether NCCL_SOCKET_IFNAME takes interfaces that work."""
    if context.interfaces is None:
        return []
    choice = parse_choice(value)
    taken = [one for one in context.interfaces if choice.takes(one.name)]
    best = _best(context.interfaces)
    advice = f"export NCCL_SOCKET_IFNAME=={best}" if best else "unset NCCL_SOCKET_IFNAME"
    name = "NCCL_SOCKET_IFNAME"
    if not any(one.usable for one in taken):
        if taken:
            shown = ", ".join(f"{one.name} ({'has no address' if one.up else 'down'})" for one in taken)
            why = f"of what it takes none works: {shown}. NCCL ends with 'no socket interface found'"
        else:
            there = ", ".join(one.name for one in context.interfaces)
            why = f"no interface here is called so ({there}). NCCL ends with 'no socket interface found'"
        return [setting(host, name, value, "error", why, advice, rule=INTERFACE_VARIABLE)]
    looks = []
    absent = [] if choice.leaves_out else missing(choice, [one.name for one in context.interfaces])
    if any(part != part.strip() for part in value.split(",")):
        why = "NCCL takes blanks for part of a name"
        looks.append(
            setting(
                host, name, value, "warning", why, f"export {name}={''.join(value.split())}", rule=INTERFACE_VARIABLE
            )
        )
    elif absent:
        why = f"there is no {', '.join(absent)} here"
        looks.append(setting(host, name, value, "note", why, advice, rule=INTERFACE_VARIABLE))
    if all(one.name == "lo" for one in taken if one.usable) and best not in (None, "lo"):
        why = "the loopback reaches this host only: with several hosts they wait for each other for ever"
        looks.append(setting(host, name, value, "note", why, advice, rule=INTERFACE_VARIABLE))
    return looks


def gloo_interfaces(value: str, context: HostContext, host: str) -> list[Look]:
    """Whether GLOO_SOCKET_IFNAME names interfaces that work."""
    if context.interfaces is None:
        return []
    by_name = {one.name: one for one in context.interfaces}
    wrong = [name for name in value.split(",") if name not in by_name or not by_name[name].usable]
    if not wrong:
        return []
    best = _best(context.interfaces)
    why = f"{', '.join(wrong)}: not an interface that is up here. Gloo takes exact names only, without ^ and ="
    advice = f"export GLOO_SOCKET_IFNAME={best}" if best else "unset GLOO_SOCKET_IFNAME"
    return [setting(host, "GLOO_SOCKET_IFNAME", value, "error", why, advice, rule=INTERFACE_VARIABLE)]


def two_interfaces(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """NCCL and Gloo told to take different interfaces: one of the two is mostly a mistake."""
    nccl, gloo = set_.get("NCCL_SOCKET_IFNAME", "").strip(), set_.get("GLOO_SOCKET_IFNAME", "").strip()
    if not nccl or not gloo or any(parse_choice(nccl).takes(name) for name in gloo.split(",")):
        return []
    why = f"NCCL is told {nccl}, Gloo {gloo}: where only one of them reaches the other hosts, a job hangs at its start"
    return [
        setting(
            host,
            "GLOO_SOCKET_IFNAME",
            gloo,
            "note",
            why,
            "set both to the interface that reaches all hosts",
            rule=INTERFACE_VARIABLE,
        )
    ]


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
    looks += two_interfaces(set_, context, host)
    if set_.get("NCCL_IB_HCA", "").strip():
        looks += _hca(set_["NCCL_IB_HCA"], set_, context, host)
    if set_.get("NCCL_IB_GID_INDEX", "").strip():
        looks += _address(set_["NCCL_IB_GID_INDEX"], context, host)
    if "CUDA_VISIBLE_DEVICES" in set_:
        looks += _visible(set_["CUDA_VISIBLE_DEVICES"], context, host)
    looks += _network(set_, context, host)
    looks += _level(set_, host)
    looks += _nothing_left(set_, context, host)
    provider = set_.get("FI_PROVIDER", "").strip()
    if provider and provider != "efa" and any(one.family == "EFA" for one in context.rdma or ()):
        why = "the EFA devices of this machine are not used: NCCL falls back to sockets"
        looks.append(
            setting(host, "FI_PROVIDER", provider, "warning", why, "export FI_PROVIDER=efa", rule=RDMA_VARIABLE)
        )
    return looks


def _hca(value: str, set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    look = partial(setting, host, "NCCL_IB_HCA", value)
    if is_on(set_.get("NCCL_IB_DISABLE", "")):
        why = "NCCL_IB_DISABLE is set too: the list is not even read"
        return [look("warning", why, "unset NCCL_IB_DISABLE, or unset NCCL_IB_HCA", rule=CONTRADICTION)]
    if context.rdma is None:
        return []
    if not context.rdma:
        return [look("note", "this machine has no RDMA device", "unset NCCL_IB_HCA", rule=RDMA_VARIABLE)]
    choice = parse_choice(value)
    there = ", ".join(one.name for one in context.rdma)
    taken = [one for one in context.rdma if any(choice.takes(one.name, port.number) for port in one.ports)]
    up = [
        one for one in taken
        if any(port.state == "ACTIVE" and choice.takes(one.name, port.number) for port in one.ports)
    ]  # fmt: skip
    if not up:
        why = "all it takes are down" if taken else f"nothing here is called so ({there})"
        why += ": NCCL falls back to sockets"
        return [look("warning", why, "unset NCCL_IB_HCA, or name devices that are up", rule=RDMA_VARIABLE)]
    looks = []
    absent = [] if choice.leaves_out else missing(choice, [one.name for one in context.rdma])
    if absent:
        why = f"there is no {', '.join(absent)} here ({there})"
        looks.append(look("warning", why, f"leave {', '.join(absent)} out", rule=RDMA_VARIABLE))
    more = [] if choice.exact or choice.leaves_out else _more_than_named(choice, context.rdma)
    if more:
        why = f"without = it takes everything that begins so: {', '.join(more)} too"
        looks.append(look("warning", why, f"export NCCL_IB_HCA=={value}", rule=RDMA_VARIABLE))
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
    advice = "unset NCCL_IB_GID_INDEX: NCCL picks the right one itself"
    if version_of(context.nccl or "2.21")[:2] < _PICKS_ADDRESS:
        right = next((v2_index(port) for port in ports if v2_index(port) is not None), None)
        advice = f"export NCCL_IB_GID_INDEX={right}" if right is not None else "see show_gids"
    kinds = {{at: kind for at, kind, _ in port.gids}.get(index) for port in ports}
    if None in kinds:
        why = "a RoCE port has no address of this number: connections over it fail"
        return [setting(host, "NCCL_IB_GID_INDEX", value, "error", why, advice, rule=RDMA_VARIABLE)]
    if any("v2" not in (kind or "") for kind in kinds):
        why = "that is not a RoCE v2 address: it does not pass routers"
        return [setting(host, "NCCL_IB_GID_INDEX", value, "warning", why, advice, rule=RDMA_VARIABLE)]
    return []


def _visible(value: str, context: HostContext, host: str) -> list[Look]:
    name = "CUDA_VISIBLE_DEVICES"
    parts = [part.strip() for part in value.split(",")]
    if context.gpus is None or context.gpus == 0:
        return []
    if parts in ([""], ["-1"], ["NoDevFiles"]):
        why = f"CUDA shows none of the {context.gpus} GPUs"
        return [setting(host, name, value or "''", "warning", why, f"unset {name}", rule=VISIBLE_DEVICES)]
    beyond = [part for part in parts if re.fullmatch(r"-?\d+", part) and not 0 <= int(part) < context.gpus]
    beyond += [
        part for part in parts
        if context.uuids and part.startswith("GPU-") and not any(uuid.startswith(part) for uuid in context.uuids)
    ]  # fmt: skip
    if beyond:
        why = f"there is no GPU {', '.join(beyond)}: CUDA leaves out this and all that follows it"
        right = ",".join(str(index) for index in range(context.gpus))
        return [setting(host, name, value, "error", why, f"export {name}={right}, or unset it", rule=VISIBLE_DEVICES)]
    if len(set(parts)) < len(parts):
        why = "a GPU is named twice: CUDA then shows none"
        return [setting(host, name, value, "error", why, f"name each GPU once in {name}", rule=VISIBLE_DEVICES)]
    return []


def _network(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """InfiniBand demanded by name where it is switched off or not there: NCCL then takes nothing in its place."""
    value = set_.get("NCCL_NET", "").strip()
    if value.casefold() != "ib":
        return []
    end = ": NCCL takes no other network and ends with an error"
    if is_on(set_.get("NCCL_IB_DISABLE", "")):
        why, advice = f"NCCL_IB_DISABLE is set too{end}", "unset NCCL_IB_DISABLE, or unset NCCL_NET"
    elif context.rdma == ():
        why, advice = f"this machine has no RDMA device{end}", "unset NCCL_NET"
    else:
        return []
    return [setting(host, "NCCL_NET", value, "error", why, advice, rule=CONTRADICTION)]


def _level(set_: Mapping[str, str], host: str) -> list[Look]:
    """A distance for P2P beside a switch that turns it off."""
    value = set_.get("NCCL_P2P_LEVEL", "").strip()
    if value in ("", "LOC", "0") or as_number(set_.get("NCCL_P2P_DISABLE", "")) != 1:
        return []
    why = "NCCL_P2P_DISABLE is set too: the level is not even read"
    advice = "unset NCCL_P2P_DISABLE, or unset NCCL_P2P_LEVEL"
    return [setting(host, "NCCL_P2P_LEVEL", value, "warning", why, advice, rule=CONTRADICTION)]


def _nothing_left(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    no_p2p = as_number(set_.get("NCCL_P2P_DISABLE", "")) == 1 or set_.get("NCCL_P2P_LEVEL", "").strip() in ("LOC", "0")
    if not (no_p2p and is_on(set_.get("NCCL_SHM_DISABLE", ""))) or (context.gpus is not None and context.gpus < 2):
        return []
    why = "neither direct access nor shared memory is left: the GPUs of one host talk over the network"
    return [
        Look(host, "environment", "P2P and SHM", "both off", "warning" if context.rdma else "error", why,
             "unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE", rule=CONTRADICTION.id)
    ]  # fmt: skip
