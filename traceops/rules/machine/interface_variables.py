"""TO-D405: variables that name network interfaces."""

from __future__ import annotations

from collections.abc import Mapping

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.host_context import HostContext
from traceops.machine.interfaces import Choice, Interface, parse_choice
from traceops.machine.look import Look
from traceops.rules.machine.variable_costs import setting

INTERFACE_VARIABLE = Rule(
    id="TO-D405",
    title="A variable names network interfaces that do not serve",
    fires=(
        "Error where NCCL_SOCKET_IFNAME takes no interface that works, or GLOO_SOCKET_IFNAME names one that "
        "is not up; warning where a name holds a blank; info where a name fits nothing, the loopback is all "
        "it takes, or the two differ."
    ),
    advice="export NCCL_SOCKET_IFNAME==NAME and GLOO_SOCKET_IFNAME=NAME, or unset both.",
    judged_by=JudgedBy.DOCTOR,
)
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
