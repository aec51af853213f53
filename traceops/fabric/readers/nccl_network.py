"""NCCL's lines of networks and their plugins: what is used, what is normally absent, and what failed.

A plugin failure is a line of `_EVENTS` or `_PLUGIN_EVENTS` of a kind in NETWORK_FAILURES, and besides:

- ``Failed to initialize NET plugin``, where the plugin is not NCCL's own or a variant of it that found no device;
- `No device found` after devices that could not be opened or warnings about verbs, and where the sockets then go over
  an interface of InfiniBand;
- a plugin's library that was found and could not be loaded: ``NET/Plugin`` with the loader's words about another
  library than the plugin's own, or without `No such file`;
- ``Could not find`` and `No such file` about a plugin that NCCL_NET_PLUGIN asks for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice

from traceops.fabric.model import Quote
from traceops.fabric.nccl import Network, NetworkEvent, NetworkEventKind
from traceops.fabric.readers.nccl_lines import NcclLine, quoted

# The first that is in a line tells its kind; wording of NCCL 2.10 to 2.29 and of aws-ofi-nccl.
_EVENTS: tuple[tuple[bytes, NetworkEventKind, str | None], ...] = (
    (b"NET/IB : No device found.", "no_device", "IB"),
    (b"Failed to open libibverbs.so", "no_library", "IB"),  # a WARN in 2.10
    (b"NET/IB : Unable to open device ", "device_failed", "IB"),
    (b"NET/IB : Unable to query device ", "device_failed", "IB"),
    (b"NET/IB : Unable to query port", "device_failed", "IB"),
    (b"NET/IB : No IP interface found.", "device_failed", "IB"),
    (b"NET/OFI Only EFA provider is supported", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Could not find any optimal provider", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Couldn't find any optimal provider", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI No eligible providers were found", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Unable to find a protocol that worked", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Couldn't open a fabric provider", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Failed to initialize sendrecv protocol", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Failed to initialize SENDRECV protocol", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Failed to initialize rdma protocol", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI Failed to initialize RDMA protocol", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI CUDA initialization failed", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI initialization failed", "plugin_failed", "AWS Libfabric"),
    (b"NET/OFI aws-ofi-nccl initialization failed", "plugin_failed", "AWS Libfabric"),
    (b"Failed to initialize any NET plugin", "no_network", None),
    (b"Error: network ", "no_network", None),  # … not found.
    (b"Bootstrap : no socket interface found", "no_interface", "Socket"),
    (b"NET/Socket : no interface found", "no_interface", "Socket"),
    (b"NET/Socket : No usable listening interface found", "no_interface", "Socket"),
    (b"verify NCCL_OOB_NET_IFNAME", "no_interface", None),
)
_PLUGIN_EVENTS: tuple[tuple[bytes, NetworkEventKind], ...] = (
    (b"symbols v4 and lower are not supported", "plugin_failed"),
    (b"External network plugin ", "plugin_failed"),  # … is unsupported
    (b"NCCL_DEVICE_UNPACK plugin has incompatible version", "plugin_failed"),
)
_FAILED = re.compile(rb"Failed to initialize NET plugin (.{1,80}?)\s*\Z")
_LOADED = re.compile(rb"NET/Plugin: Loaded (?:net|coll|collnet) plugin (.{1,80}?) \(v\d")
_MISSING = re.compile(
    rb"NET/Plugin ?: (?:Could not find: ?(?P<names>.{0,200})|"
    rb"(?:dlerror=.{0,200})?No plugin found(?: \((?P<name>[^)]{0,200})\))?)"
)
_LOADER = re.compile(rb"([^ :=/]{1,100}\.so[.0-9]{0,12}): (.{1,300})")
_NOT_THERE = b"cannot open shared object file: No such file or directory"
_DEFAULT_PLUGIN = re.compile(rb"(?:.*/)?lib[nr]ccl-net\.so\Z")
_USING = re.compile(rb"NET/(IB|Socket) : Using(.*)")
_OVER_IB = re.compile(rb"NET/Socket : Using \[\d{1,5}\]ib[a-z]{0,3}\d")  # ib0, ibp24s0: InfiniBand's interfaces
_DEVICE = re.compile(rb" \[(\d{1,5})\](?:=\{([^}]{1,500})\}|([^ ]{1,200}))")
_ADDRESS = re.compile(r":[^<]{0,100}<\d{1,5}>\Z")
_NETWORK = re.compile(rb"Using network (.{1,80}?)\s*\Z")
_PROVIDER = re.compile(rb"NET/OFI Selected [Pp]rovider is ([^ ,]{1,60})")
_GDR = re.compile(rb"NET/(.{1,80}?) ?: GPU Direct RDMA (Enabled|Disabled) for HCA \d{1,5} '([^']{1,100})'")
_HARMLESS = b"ibv_query_port_speed"  # newer than some drivers; without it NCCL counts the speed itself
_MOST_EVENTS = 500
_MOST_PROCESSES = 1 << 16
_MOST_DEVICES = 256
# A message that holds none of these tells nothing of the network.
_NEEDLES: tuple[bytes, ...] = (
    b"NET/", b"NET plugin", b"Using network ", b"ibv", b"network ", b"interface", b"IFNAME", b"plugin",
)  # fmt: skip


@dataclass
class _NcclProcess:
    """What one process said so far. devices and gdr: by network, ``IB`` or ``Socket``.

    absent, off and broken: networks without a device, switched off, and with devices that cannot be used.
    """

    devices: dict[str, dict[int, str]] = field(default_factory=dict)
    gdr: dict[str, dict[str, bool]] = field(default_factory=dict)
    used: dict[str, Quote] = field(default_factory=dict)
    provider: str | None = None
    absent: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    loaded: str | None = None


class Networks:
    """Takes the lines of all processes and gives networks and events at the end."""

    def __init__(self) -> None:
        self._processes: defaultdict[tuple[str, int], _NcclProcess] = defaultdict(_NcclProcess)
        self._events: dict[tuple[NetworkEventKind, bytes], NetworkEvent] = {}

    def take(self, line: NcclLine, path: str) -> bool:
        """Whether the line tells of the network."""
        if not any(needle in line.message for needle in _NEEDLES):
            return False
        key = line.speaker.host, line.speaker.pid
        if key not in self._processes and len(self._processes) >= _MOST_PROCESSES:
            return False
        process, message = self._processes[key], line.message
        if line.warns and b"ibv_" in message and _HARMLESS not in message:
            process.broken.add("IB")
        event = _event(message, process)
        if event is not None:
            self._add(event, line, path)
        if (using := _USING.match(message)) is not None:
            devices = process.devices.setdefault(using[1].decode(), {})
            told = _DEVICE.finditer(using[2].partition(b"; OOB")[0])
            for match in islice(told, _MOST_DEVICES):
                devices.setdefault(int(match[1]), _ADDRESS.sub("", (match[2] or match[3]).decode(errors="replace")))
        elif (network := _NETWORK.match(message)) is not None:
            quote = Quote(path, line.number, quoted(line.raw))
            process.used.setdefault(network[1].decode(errors="replace"), quote)
        elif (gdr := _GDR.match(message)) is not None:
            by_name = process.gdr.setdefault(gdr[1].decode(errors="replace"), {})
            by_name.setdefault(gdr[3].decode(errors="replace"), gdr[2] == b"Enabled")
        elif (provider := _PROVIDER.match(message)) is not None:
            process.provider = provider[1].decode(errors="replace")
        elif (loaded := _LOADED.match(message)) is not None:
            process.loaded = loaded[1].decode(errors="replace")
        else:
            return event is not None
        return True

    def switched_off(self, line: NcclLine, plugin: str) -> None:
        """A setting keeps the line's process from using a network."""
        key = line.speaker.host, line.speaker.pid
        if key in self._processes or len(self._processes) < _MOST_PROCESSES:
            self._processes[key].off.add(plugin)

    def _add(self, event: tuple[NetworkEventKind, str | None], line: NcclLine, path: str) -> None:
        kind, plugin = event
        key = kind, line.message[:200]
        if key not in self._events and len(self._events) < _MOST_EVENTS:
            quote = Quote(path, line.number, quoted(line.raw))
            self._events[key] = NetworkEvent(kind, line.speaker.host, line.speaker.pid, quote, plugin)

    def names(self) -> dict[tuple[str, int], dict[int, str]]:
        """Names of the network devices that each process uses, by NCCL's number."""
        return {
            key: devices
            for key, process in self._processes.items()
            for plugin in process.used
            if (devices := process.devices.get(_driver(plugin)))
        }

    def networks(self) -> tuple[Network, ...]:
        return tuple(
            Network(
                host, pid, plugin, quote, tuple(sorted(process.devices.get(_driver(plugin), {}).items())),
                process.gdr.get(plugin, {}), None if _driver(plugin) in ("IB", "Socket") else process.provider,
            )
            for (host, pid), process in self._processes.items()
            for plugin, quote in process.used.items()
        )  # fmt: skip

    def events(self) -> tuple[NetworkEvent, ...]:
        return tuple(self._events.values())


def _driver(plugin: str) -> str:
    """Whose lines tell of a plugin's devices: NVIDIA's external ones print those of IB."""
    return "IB" if plugin.startswith(("IB", "SPCX")) else plugin


def _event(message: bytes, process: _NcclProcess) -> tuple[NetworkEventKind, str | None] | None:
    for needle, kind, plugin in _EVENTS:
        if needle in message:
            if plugin is not None and kind == "device_failed":
                process.broken.add(plugin)
            elif plugin is not None and kind in ("no_device", "no_library"):
                if plugin in process.broken:  # none that can be used
                    return "device_failed", plugin
                process.absent.add(plugin)
            return kind, plugin
    for needle, kind in _PLUGIN_EVENTS:
        if needle in message and b"CollNet" not in message:
            return kind, process.loaded
    if (failed := _FAILED.match(message)) is not None:
        plugin = failed[1].decode(errors="replace")
        if _driver(plugin) in process.broken or (_driver(plugin) not in process.absent and plugin != "IB"):
            return "plugin_failed", plugin
        return ("no_device" if _driver(plugin) in process.absent else "disabled"), plugin
    if "IB" in process.absent - process.off and _OVER_IB.match(message) is not None:
        return "device_failed", "IB"
    if message.startswith(b"NET/Plugin"):
        return _plugin_event(message)
    return None


def _plugin_event(message: bytes) -> tuple[NetworkEventKind, str | None] | None:
    """What opening the plugin's library gave."""
    missing = _MISSING.match(message)
    if missing is not None:
        names = missing["names"] or missing["name"] or b""
        asked = [name.rstrip(b".,") for name in names.partition(b"Using internal")[0].split()]
        if not asked or b"none" in asked or all(_DEFAULT_PLUGIN.match(name) for name in asked):
            return "no_plugin", None
        return "plugin_missing", asked[0].decode(errors="replace")
    loader = _LOADER.search(message)
    if loader is None:
        return None
    library, said = loader[1], loader[2]
    name = library.decode(errors="replace")
    is_absent = b"No such file or directory" in said or _NOT_THERE.startswith(said.rstrip())  # cut or wrapped
    if is_absent and b"ccl-net" in library:
        return ("no_plugin" if _DEFAULT_PLUGIN.match(library) else "plugin_missing"), name
    if b"cannot open" in said or b"undefined symbol" in said or b"version `" in said or b"invalid ELF" in said:
        return "plugin_failed", name
    return None
