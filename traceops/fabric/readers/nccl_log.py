"""Reads what NCCL (2.10 to 2.28) and RCCL write with NCCL_DEBUG=INFO, from any number of files of any size."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct, field

from traceops.fabric import nccl
from traceops.fabric.model import Quote
from traceops.fabric.readers import nccl_lines
from traceops.fabric.readers.nccl_comms import Communicators
from traceops.fabric.readers.nccl_system import Systems, begins

# NCCL's lines of networks and their plugins: what is used, what is normally absent, and what failed.
#
# A plugin failure is a line of `_EVENTS` or `_PLUGIN_EVENTS` of a kind in NETWORK_FAILURES, and besides:
#
# - ``Failed to initialize NET plugin``, where the plugin is not NCCL's own or a variant of it that found no device;
# - `No device found` after devices that could not be opened or warnings about verbs, and where the sockets then go over
#   an interface of InfiniBand;
# - a plugin's library that was found and could not be loaded: ``NET/Plugin`` with the loader's words about another
#   library than the plugin's own, or without `No such file`;
# - ``Could not find`` and `No such file` about a plugin that NCCL_NET_PLUGIN asks for.

# The first that is in a line tells its kind; wording of NCCL 2.10 to 2.29 and of aws-ofi-nccl.
_EVENTS: tuple[tuple[nccl.NetworkEventKind, str | None, tuple[bytes, ...]], ...] = (
    ("no_device", "IB", (b"NET/IB : No device found.",)),
    ("no_library", "IB", (b"Failed to open libibverbs.so",)),  # a WARN in 2.10
    ("device_failed", "IB", (
        b"NET/IB : Unable to open device ", b"NET/IB : Unable to query device ", b"NET/IB : Unable to query port",
        b"NET/IB : No IP interface found.",
    )),
    ("plugin_failed", "AWS Libfabric", (
        b"NET/OFI Only EFA provider is supported", b"NET/OFI Could not find any optimal provider",
        b"NET/OFI Couldn't find any optimal provider", b"NET/OFI No eligible providers were found",
        b"NET/OFI Unable to find a protocol that worked", b"NET/OFI Couldn't open a fabric provider",
        b"NET/OFI Failed to initialize sendrecv protocol", b"NET/OFI Failed to initialize SENDRECV protocol",
        b"NET/OFI Failed to initialize rdma protocol", b"NET/OFI Failed to initialize RDMA protocol",
        b"NET/OFI CUDA initialization failed", b"NET/OFI initialization failed",
        b"NET/OFI aws-ofi-nccl initialization failed",
    )),
    ("no_network", None, (b"Failed to initialize any NET plugin", b"Error: network ")),  # … not found.
    ("no_interface", "Socket", (
        b"Bootstrap : no socket interface found", b"NET/Socket : no interface found",
        b"NET/Socket : No usable listening interface found",
    )),
    ("no_interface", None, (b"verify NCCL_OOB_NET_IFNAME",)),
)  # fmt: skip
_PLUGIN_EVENTS: tuple[tuple[bytes, nccl.NetworkEventKind], ...] = (
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


class _NcclProcess(Struct):
    """What one process said so far. devices and gdr: by network, ``IB`` or ``Socket``. absent, off and broken: networks
    without a device, switched off, and with devices that cannot be used."""

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
        self._events: dict[tuple[nccl.NetworkEventKind, bytes], nccl.NetworkEvent] = {}

    def take(self, line: nccl_lines.NcclLine, path: str) -> bool:
        """Whether the line tells of the network."""
        if not any(map(line.message.__contains__, _NEEDLES)):
            return False
        key = line.speaker.host, line.speaker.pid
        if key not in self._processes and len(self._processes) >= _MOST_PROCESSES:
            return False
        process, message = self._processes[key], line.message
        if line.warns and b"ibv_" in message and _HARMLESS not in message:
            process.broken.add("IB")
        if (event := _event(message, process)) is not None:
            made = nccl.NetworkEvent(event[0], *key, line.quote(path), event[1])
            if len(self._events) < _MOST_EVENTS:
                self._events.setdefault((event[0], message[:200]), made)
        if (using := _USING.match(message)) is not None:
            devices = process.devices.setdefault(using[1].decode(), {})
            told = _DEVICE.finditer(using[2].partition(b"; OOB")[0])
            for match in islice(told, _MOST_DEVICES):
                devices.setdefault(int(match[1]), _ADDRESS.sub("", (match[2] or match[3]).decode(errors="replace")))
        elif (network := _NETWORK.match(message)) is not None:
            process.used.setdefault(network[1].decode(errors="replace"), line.quote(path))
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

    def switched_off(self, line: nccl_lines.NcclLine, plugin: str) -> None:
        """A setting keeps the line's process from using a network."""
        key = line.speaker.host, line.speaker.pid
        if key in self._processes or len(self._processes) < _MOST_PROCESSES:
            self._processes[key].off.add(plugin)

    def names(self) -> dict[tuple[str, int], dict[int, str]]:
        """Names of the network devices that each process uses, by NCCL's number."""
        return {
            key: devices
            for key, process in self._processes.items()
            for plugin in process.used
            if (devices := process.devices.get(_driver(plugin)))
        }

    def networks(self) -> tuple[nccl.Network, ...]:
        return tuple(
            nccl.Network(
                host, pid, plugin, quote, tuple(sorted(process.devices.get(_driver(plugin), {}).items())),
                process.gdr.get(plugin, {}), None if _driver(plugin) in ("IB", "Socket") else process.provider,
            )
            for (host, pid), process in self._processes.items()
            for plugin, quote in process.used.items()
        )  # fmt: skip

    def events(self) -> tuple[nccl.NetworkEvent, ...]:
        return tuple(self._events.values())


def _driver(plugin: str) -> str:
    """Whose lines tell of a plugin's devices: NVIDIA's external ones print those of IB."""
    return "IB" if plugin.startswith(("IB", "SPCX")) else plugin


def _event(message: bytes, process: _NcclProcess) -> tuple[nccl.NetworkEventKind, str | None] | None:
    for kind, plugin, needles in _EVENTS:
        if any(needle in message for needle in needles):
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


def _plugin_event(message: bytes) -> tuple[nccl.NetworkEventKind, str | None] | None:
    """What opening the plugin's library gave."""
    if (missing := _MISSING.match(message)) is not None:
        names = missing["names"] or missing["name"] or b""
        asked = [name.rstrip(b".,") for name in names.partition(b"Using internal")[0].split()]
        if not asked or b"none" in asked or all(_DEFAULT_PLUGIN.match(name) for name in asked):
            return "no_plugin", None
        return "plugin_missing", asked[0].decode(errors="replace")
    if (loader := _LOADER.search(message)) is None:
        return None
    library, said = loader[1], loader[2]
    name = library.decode(errors="replace")
    is_absent = b"No such file or directory" in said or _NOT_THERE.startswith(said.rstrip())  # cut or wrapped
    if is_absent and b"ccl-net" in library:
        return ("no_plugin" if _DEFAULT_PLUGIN.match(library) else "plugin_missing"), name
    if b"cannot open" in said or b"undefined symbol" in said or b"version `" in said or b"invalid ELF" in said:
        return "plugin_failed", name
    return None


_SETTING = re.compile(
    rb"([A-Z][A-Z0-9_]{2,79}|NET/Plugin: Plugin name|Plugin name) (?:set by environment to|set by env to|set to) "
    rb"(.{0,400}?)\s*\Z"
)
_PLUGIN_NAME = "NCCL_NET_PLUGIN"
_NUMBER = re.compile(r"-?\d{1,20}\.\Z")
_VERSION = re.compile(rb"([NR])CCL version ?:? ?(\d{1,3}\.\d{1,3}[^\s]{0,60})")
_DRIVER = re.compile(rb"cudaDriverVersion (\d{4,6})\s*\Z")
# ``AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}``; until 2.22 without the name, until 2.23 numbers.
_CHOICE = re.compile(rb"(?:(\w{1,40}): )?(\d{1,18}) Bytes -> Algo (\w{1,24}) proto (\w{1,12})(?: time | channel|\s*\Z)")
_ALGORITHMS = {
    "0": "TREE", "1": "RING", "2": "COLLNET_DIRECT", "3": "COLLNET_CHAIN", "4": "NVLS", "5": "NVLS_TREE", "6": "PAT"
}  # fmt: skip
_PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
_TUNER = re.compile(
    rb"(?:TUNER/Plugin: Using (?!internal)(?:tuner plugin )?|Using tuner plugin: )'?([^' ].{0,80}?)'?"
    rb"(?: \(v\d{1,2}\))?\s*\Z"
)
_P2P_DISABLED = (
    b"P2P is disabled between ",
    b"Could not enable P2P between dev ",
    b"peer query failed between dev ",
    b"Legacy IPC not supported",
    b"peer access is not supported between these two devices",  # CUDA's error 217
)
# RCCL's warnings of its host, by words that are in them.
_HOST_REMARKS: tuple[tuple[bytes, bytes, nccl.HostRemarkKind], ...] = (
    (b"iommu=pt", b" from kernel command line", "no_iommu_pt"),
    (b"NUMA auto balancing", b" enabled", "numa_balancing"),
)
# First bytes of lines that there are many of and that tell nothing here.
_PASSED_OVER: frozenset[bytes] = frozenset((
    b"Conn", b"Tree", b"Ring", b"Topo", b"RAS ", b"MNNV", b"Chec", b"[Pro", b"[Ser", b"dlvs", b"thre", b"NVLS",
    b"Sett", b"TOPO", b"ENV/", b"PROF", b"send", b"recv", b"Allo", b"Mem ", b"CUDA", b"UDS ", b"Impo", b"Cuda", b"New ",
    b"prox", b"====", b"MMAP", b"CUME", b"Set ", b"Loca", b"Attr", b"KV C",
    *(b"%2d :" % channel for channel in range(100)),  # a channel's devices after a Pattern
))  # fmt: skip
_MOST_REMEMBERED = 1 << 16
_MOST_SETTINGS = 2_000
_MOST_WARNINGS = 500
_MOST_CHOICES = 500
_MOST_NAMES = 100


def read_nccl_log(paths: Sequence[str]) -> nccl.NcclLog:
    """What the NCCL INFO and WARN lines of some files say; other lines, cut ones and unknown forms are passed over. The
    files may be of one process each or hold the output of all ranks. Raises InputError where one cannot be read."""
    reader = _Reader()
    lines = nccl_lines.LineReader()
    for path in paths:
        for line in lines.lines(path, _PASSED_OVER):
            reader.take(line, path)
    return reader.finish(tuple(paths))


class _Reader:
    """Hands each line to whom it concerns."""

    def __init__(self) -> None:
        self._comms = Communicators()
        self._nameless = Communicators()  # of connections whose lines name no process
        self._networks = Networks()
        self._systems = Systems()
        self._links: dict[bytes, nccl_lines.Link | None] = {}
        self._telling_nothing: set[bytes] = set()
        self._choices: dict[bytes, _Chosen] = {}
        self._chosen: dict[tuple[str | None, str, str], _Chosen] = {}
        self._versions: dict[str, None] = {}
        self._driver: str | None = None
        self._settings: dict[tuple[str, str], nccl.NcclSetting] = {}
        self._warnings: dict[bytes, Quote] = {}
        self._p2p: dict[bytes, Quote] = {}
        self._remarks: dict[tuple[nccl.HostRemarkKind, str], Quote] = {}
        self._tuners: dict[str, None] = {}
        self._informed: set[nccl_lines.Speaker] = set()

    def take(self, line: nccl_lines.NcclLine, path: str) -> None:
        if line.warns:
            message = line.message.rstrip()
            if any(map(message.__contains__, _P2P_DISABLED)):
                self._disabled(line, path)
            for word, rest, kind in _HOST_REMARKS:
                if word in message and rest in message and len(self._remarks) < _MOST_REMEMBERED:
                    self._remarks.setdefault((kind, line.speaker.host), line.quote(path))
            self._networks.take(line, path)
            if message[:200] not in self._warnings and len(self._warnings) < _MOST_WARNINGS:
                self._warnings[message[:200]] = line.quote(path)
            return
        if line.speaker not in self._informed and len(self._informed) < _MOST_REMEMBERED and b"NCCL INFO " in line.raw:
            self._informed.add(line.speaker)
        if line.message.startswith((b"Channel ", b"CollNet ")):
            self._channel(line, path)
        else:
            self._other(line, path)

    def _channel(self, line: nccl_lines.NcclLine, path: str) -> None:
        message, speaker = line.message, line.speaker
        head, _, text = message.partition(b" : ")
        if (link := self._links.get(text)) is None and text not in self._links:
            if len(self._links) >= _MOST_REMEMBERED:
                self._links.clear()
            link = self._links[text] = (
                nccl_lines.read_link(text) if head.startswith(b"Channel ") else nccl_lines.read_collnet(text)
            )
        if link is None:
            if (ring := nccl_lines.read_ring(message)) is not None:
                self._comms.take_ring(speaker, ring)
            return
        channel = head.partition(b" ")[2].partition(b"/")[0]
        if not channel.isdigit() or len(channel) > 4:
            return
        if speaker is not nccl_lines.NOBODY:
            self._comms.take_link(speaker, link, int(channel), line, path)
        elif link.transport != "COLLNET":  # the ranks are all that is told of who says so
            own = link.destination if link.is_receive else link.source
            self._nameless.take_link(nccl_lines.Speaker("", own, -1), link, int(channel), line, path)

    def _other(self, line: nccl_lines.NcclLine, path: str) -> None:
        message, speaker = line.message, line.speaker
        if message in self._telling_nothing or b": opCount " in message:  # of every call, with subsystem COLL
            return
        if (chosen := self._choices.get(message)) is not None:
            chosen.calls += 1
            return
        if speaker is nccl_lines.NOBODY:
            self._told(line, path)
            return
        if (section := self._systems.of(speaker)) is not None:
            if section.take(line):
                return
            if section.paths:  # its last lines
                self._systems.end(speaker)
        if b"- Init " in message and (init := nccl_lines.read_init(message)) is not None:
            self._comms.take_init(speaker, init)
        elif b" Bytes -> Algo " in message:
            self._choice(line, path)
        elif message.startswith(b"Pattern ") and (pattern := nccl_lines.read_pattern(message)) is not None:
            self._comms.take_pattern(speaker, pattern, line.quote(path))
        elif b" coll channels" in message and (counts := nccl_lines.read_counts(message)) is not None:
            self._comms.take_counts(speaker, counts)
        elif b" nNodes " in message and (nodes := nccl_lines.read_nodes(message)) is not None:
            self._comms.take_nodes(speaker, *nodes)
        elif begins(message):
            self._systems.begin(speaker, path, self._comms.starting(speaker))
        elif not (self._told(line, path) or len(self._telling_nothing) >= _MOST_REMEMBERED):
            self._telling_nothing.add(message)

    def _told(self, line: nccl_lines.NcclLine, path: str) -> bool:
        """Whether the line tells of the process, rather than of a communicator."""
        message = line.message
        if b" set " in message and (setting := _SETTING.match(message)) is not None:
            self._setting(setting, line, path)
        elif b"CCL version" in message and (version := _VERSION.match(message)) is not None:
            self._versions.setdefault(("RCCL " if version[1] == b"R" else "") + version[2].decode(errors="replace"))
        elif (driver := _DRIVER.match(message)) is not None:
            number = int(driver[1])
            self._driver = self._driver or f"{number // 1000}.{number % 1000 // 10}"
        elif b"uner" in message and (tuner := _TUNER.match(message)) is not None:
            if len(self._tuners) < _MOST_NAMES:
                self._tuners.setdefault(tuner[1].decode(errors="replace"))
        elif any(words in message for words in _P2P_DISABLED):
            self._disabled(line, path)
        else:
            return self._networks.take(line, path)
        return True

    def _disabled(self, line: nccl_lines.NcclLine, path: str) -> None:
        if line.message[:200] not in self._p2p and len(self._p2p) < _MOST_WARNINGS:
            self._p2p[line.message[:200]] = line.quote(path)

    def _setting(self, match: re.Match[bytes], line: nccl_lines.NcclLine, path: str) -> None:
        name = match[1].decode() if match[1].isupper() or b"_" in match[1] else _PLUGIN_NAME
        value = match[2].decode(errors="replace")
        if _NUMBER.match(value):  # NCCL ends a sentence after numbers, but not after text
            value = value[:-1]
        if name == "NCCL_IB_DISABLE" and value.strip() not in ("", "0"):
            self._networks.switched_off(line, "IB")
        if (name, value) not in self._settings and len(self._settings) < _MOST_SETTINGS:
            self._settings[name, value] = nccl.NcclSetting(name, value, line.quote(path))

    def _choice(self, line: nccl_lines.NcclLine, path: str) -> None:
        if (match := _CHOICE.match(line.message)) is None:
            return
        op = None if match[1] is None else match[1].decode()
        algorithm, protocol = match[3].decode(), match[4].decode()
        key = op, _ALGORITHMS.get(algorithm, algorithm.upper()), _PROTOCOLS.get(protocol, protocol.upper())
        if key not in self._chosen and len(self._chosen) >= _MOST_CHOICES:
            return
        size = int(match[2])
        chosen = self._chosen.setdefault(key, _Chosen(size, size, line.quote(path)))
        chosen.least, chosen.most = min(chosen.least, size), max(chosen.most, size)
        chosen.calls += 1
        if len(self._choices) >= _MOST_REMEMBERED:
            self._choices.clear()
        self._choices[line.message] = chosen

    def finish(self, files: tuple[str, ...]) -> nccl.NcclLog:
        communicators, left_out = self._comms.finish()
        if not communicators:
            communicators, left_out = self._nameless.finish()
        events = self._networks.events()
        return nccl.NcclLog(
            files=files,
            nccl_versions=tuple(self._versions),
            cuda_driver=self._driver,
            communicators=communicators,
            networks=self._networks.networks(),
            settings=tuple(self._settings.values()),
            plugin_failures=tuple(event.quote for event in events if event.failed),
            warnings=tuple(self._warnings.values()),
            machines=self._systems.machines(self._comms.devices(), self._networks.names()),
            network_events=events,
            choices=tuple(
                nccl.TunerChoice(*key, chosen.calls, chosen.least, chosen.most, chosen.quote)
                for key, chosen in self._chosen.items()
            ),
            tuners=tuple(self._tuners),
            p2p_disabled=tuple(self._p2p.values()),
            connections_left_out=left_out,
            host_remarks=tuple(nccl.HostRemark(*key, quote) for key, quote in self._remarks.items()),
            informed=frozenset((speaker.host, speaker.pid) for speaker in self._informed),
        )


class _Chosen(Struct):
    """Calls of one kind so far, with the smallest and largest message in bytes."""

    least: int
    most: int
    quote: Quote
    calls: int = 0
