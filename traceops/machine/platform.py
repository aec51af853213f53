"""Reads what this host is, and what it allows: container, PCI bus, versions of torch, CUDA and NCCL, and limits.

Versions come from files: none of the three is loaded. Limits are those of cgroups, ulimits and shared memory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from traceops.machine.files import cores, entries, exists, number, text

_GPU = re.compile(r"GPU (\d{1,4}): ")
_LINK = re.compile(r"\s*Link (\d{1,3}): (.*)")
_SPEED = re.compile(r"(\d{1,5}(?:\.\d+)?) GB/s")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"GPU (\d{1,4}): (.{1,200}?) \(UUID: ([^)]{1,80})\)")
_SAID = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "X"))  # of `topo -p2p`; `topo -m` says PIX, NV4, SYS


class Links(Struct, frozen=True):
    """NVLinks of one GPU: GB/s one way of each that is up, and how many exist and are not up."""

    up: tuple[float, ...]
    down: int


def parse_nvlink_status(text: str) -> dict[int, Links]:
    """What ``nvidia-smi nvlink -s`` says, by GPU; a GPU without NVLink has no links."""
    speeds: dict[int, list[float]] = {}
    down: dict[int, int] = defaultdict(int)
    gpu: int | None = None
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = int(head[1])
            speeds.setdefault(gpu, [])
        elif gpu is not None and (link := _LINK.match(line)):
            if speed := _SPEED.match(link[2]):
                speeds[gpu].append(float(speed[1]))
            elif "inactive" in link[2].lower():
                down[gpu] += 1
    return {index: Links(tuple(found), down[index]) for index, found in speeds.items()}


def named_gpus(text: str) -> tuple[tuple[int, str, str], ...]:
    """Index, name and UUID of the GPUs that ``nvidia-smi nvlink -s`` lists, each once."""
    found = (_NAMED.match(line) for line in text.splitlines())
    return tuple(dict.fromkeys((int(head[1]), head[2], head[3]) for head in found if head))


def parse_p2p(text: str) -> dict[tuple[int, int], str]:
    """What ``nvidia-smi topo -p2p r`` says of each pair: ``OK``, ``CNS``, ``GNS``, ``TNS``, ``NS``, ``DR``, ``U``.
    Other matrices in the text are passed over; of several of this kind the first counts."""
    return next(iter(p2p_matrices(text)), {})


def p2p_matrices(text: str) -> list[dict[tuple[int, int], str]]:
    """What each matrix of ``nvidia-smi topo -p2p`` in the text says of each pair."""
    columns: list[int] = []
    found: list[dict[tuple[int, int], str]] = []
    pairs: dict[tuple[int, int], str] = {}
    for line in _COLOUR.sub("", text).splitlines():
        words = line.split()
        labels = [re.fullmatch(r"GPU(\d{1,4})", word) for word in words]
        if words and all(labels):
            columns = [int(label[1]) for label in labels if label]
            pairs = {}
        elif columns and words and labels[0] and len(words) == len(columns) + 1 and _SAID.issuperset(words[1:]):
            row = int(labels[0][1])
            for column, word in zip(columns, words[1:], strict=True):
                if column != row:
                    pairs.setdefault((row, column), word)
            if pairs and not (found and found[-1] is pairs):
                found.append(pairs)
    return found


_BRIDGE_CLASS = "0x0604"
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_ACS = 0x000D
_REDIRECTS = 0x4 | 0x8  # requests, completions: both go up to the host bridge
_FIRST_EXTENDED = 0x100
_FABRIC_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 letters of a name
# One of these is enough for NCCL: NVIDIA/nccl@5067397:src/transport/net_ib/gdr.cc; nv_peer_mem makes the last two.
_PEER_MEMORY = (
    "module/nvidia_peermem", "module/nv_peer_mem", "kernel/mm/memory_peers/nv_mem", "kernel/mm/memory_peers/nv_mem_nc",
)  # fmt: skip
_DMABUF_KERNEL = (5, 12)


class PlatformFacts(Struct, frozen=True):
    """kind: ``docker``, ``Kubernetes``, ``Apptainer``, …; None outside of containers.

    gpu_files: /dev/nvidia0 and so on. on_bus: NVIDIA GPUs that PCI shows. of_driver: those the driver has.
    translated: PCI addresses of GPUs behind an IOMMU that translates. redirecting: bridges above GPUs whose ACS
    sends what one GPU writes to another over the host bridge; None where nobody may read it.
    peermem: the module for GPUDirect RDMA is loaded. dmabuf: kernel and driver can do without it. switches: NVSwitches
    of this host. fabric_manager: its program is seen to run.
    """

    kind: str | None
    gpu_files: int
    on_bus: int
    of_driver: int
    translated: tuple[str, ...] = ()
    redirecting: tuple[str, ...] | None = None
    peermem: bool = False
    dmabuf: bool = False
    switches: int = 0
    fabric_manager: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether anything shows NVIDIA GPUs, whatever nvidia-smi says."""
        return bool(self.gpu_files or self.on_bus or self.of_driver)


def read_platform(environ: Mapping[str, str], root: Path) -> PlatformFacts:
    """What files and variables tell of the container and the PCI bus."""
    devices = entries(root / "sys/bus/pci/devices")
    gpus = [one for one in devices if text(one / "vendor") == _NVIDIA and (text(one / "class") or "")[:6] in _DISPLAY]
    # GPUDirect RDMA without a module of its own wants Linux 5.12 and the driver's open kernel modules.
    release = re.match(r"(\d+)\.(\d+)", text(root / "proc/sys/kernel/osrelease") or "")
    new = release is not None and (int(release[1]), int(release[2])) >= _DMABUF_KERNEL
    return PlatformFacts(
        _kind(environ, root), sum(1 for entry in entries(root / "dev") if re.fullmatch(r"nvidia\d+", entry.name)),
        len(gpus), len(entries(root / "proc/driver/nvidia/gpus")),
        tuple(one.name for one in gpus if (text(one / "iommu_group/type") or "").startswith("DMA")), _redirecting(gpus),
        any(exists(root / "sys" / path) for path in _PEER_MEMORY),
        new and "Open Kernel Module" in (text(root / "proc/driver/nvidia/version") or ""),
        sum(1 for entry in entries(root / "dev") if re.fullmatch(r"nvidia-nvswitch\d+", entry.name)),
        any((text(one / "comm") or "").startswith(_FABRIC_MANAGER)
            for one in entries(root / "proc") if one.name.isdigit()),
    )  # fmt: skip


def _kind(environ: Mapping[str, str], root: Path) -> str | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "Apptainer"
    if exists(root / "run/.containerenv"):
        return "podman"
    if exists(root / ".dockerenv"):
        return "docker"
    groups = text(root / "proc/1/cgroup") or ""
    named = {"kubepods": "Kubernetes", "docker": "docker", "containerd": "containerd", "lxc": "LXC"}
    return next((kind for part, kind in named.items() if part in groups), None)


def _redirecting(gpus: Sequence[Path]) -> tuple[str, ...] | None:
    """Bridges inside PCIe switches above GPUs that ACS makes send everything up. Below a port of the root nothing goes
    from device to device, so ACS there leads nothing astray."""
    above: dict[str, Path] = {}
    for gpu in gpus:
        try:
            way = gpu.resolve()
        except OSError:
            continue
        for folder in way.parents:
            if all((text(one / "class") or "").startswith(_BRIDGE_CLASS) for one in (folder, folder.parent)):
                above[folder.name] = folder
    answers = {name: acs_redirects(_config(folder)) for name, folder in above.items()}
    if not answers or all(answer is None for answer in answers.values()):
        return None
    return tuple(sorted(name for name, answer in answers.items() if answer))


def _config(folder: Path) -> bytes:
    try:
        return (folder / "config").read_bytes()
    except OSError:
        return b""


def acs_redirects(config: bytes) -> bool | None:
    """Whether a bridge's configuration space has ACS redirect on; None where only root may read that far."""
    if len(config) < 4096:
        return None
    at = _FIRST_EXTENDED
    for _ in range(64):
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _REDIRECTS)
        at = header >> 20
        if at < _FIRST_EXTENDED:
            return False
    return False


_WHEEL = re.compile(r"nvidia[-_]nccl[-_](cu\d+)", re.IGNORECASE)
_NEEDS = re.compile(r"nvidia[-_]nccl[-_](cu\d+)\s*\(?==\s*([\d.]+)", re.IGNORECASE)
_LIBRARY = "libnccl.so.2"
_SYSTEM = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib")
_SAYS_ITSELF = re.compile(rb"NCCL version (\d{1,2}\.\d{1,3}\.\d{1,3})\+cuda")


class Software(Struct, frozen=True):
    """torch: its version. cuda and hip: what it was built for, None for neither. wheels: NCCL's by CUDA (``cu13``).

    needs: the version of NCCL's wheel that torch asks for. preloaded: NCCL that LD_PRELOAD loads, found: NCCL in
    LD_LIBRARY_PATH, shared: NCCL of the system: paths with versions as far as they tell. compat: CUDA's forward
    compatibility is in the path.
    """

    python: str
    torch: str | None
    cuda: str | None = None
    hip: str | None = None
    wheels: tuple[tuple[str, str], ...] = ()
    needs: str | None = None
    preloaded: tuple[tuple[str, str | None], ...] = ()
    found: tuple[tuple[str, str | None], ...] = ()
    shared: tuple[tuple[str, str | None], ...] = ()
    compat: bool = False

    @property
    def nccl(self) -> str | None:
        """NCCL's version that torch is expected to load."""
        preloaded = [version for _, version in self.preloaded if version]
        shared = [version for _, version in (self.found or self.shared) if version] if not self.wheels else []
        known = [*preloaded, *(version for _, version in self.wheels), *([self.needs] if self.needs else []), *shared]
        return known[0] if known else None


def read_software(environ: Mapping[str, str], root: Path) -> Software:
    """What is installed for this Python and what the loader's variables would put in its place."""
    torch, needs = _torch()
    # CUDA and HIP from torch's version.py, which is read and not run: torch takes seconds to load.
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    cuda, hip = parse_torch_version(text(Path(next(iter(places))) / "version.py") or "") if places else (None, None)
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    preloaded = [part for part in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")) if "libnccl" in part]
    inside = [str(Path(folder) / _LIBRARY) for folder in folders if exists(root / folder.lstrip("/") / _LIBRARY)]
    named = ((_WHEEL.fullmatch(one.metadata["Name"] or ""), one.version) for one in importlib.metadata.distributions())
    wheels = tuple(sorted({(match[1], version) for match, version in named if match}))
    system = [str(Path("/") / folder / _LIBRARY) for folder in _SYSTEM if exists(root / folder / _LIBRARY)]
    return Software(
        platform.python_version(),
        torch,
        cuda,
        hip,
        wheels,
        needs,
        _with_versions(preloaded, root),
        _with_versions(inside, root),
        # A wheel of torch has its own NCCL and never looks there; one built with the system's NCCL does.
        _with_versions(system[:1] if not wheels and cuda else (), root),
        any("compat" in folder for folder in folders),
    )


def _torch() -> tuple[str | None, str | None]:
    """The versions of torch that is installed, and of NCCL's wheel that it asks for."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None, None
    asked = (match[2] for line in torch.requires or () if (match := _NEEDS.match(line)))
    return torch.version, next(asked, None)


def _with_versions(paths: Iterable[str], root: Path) -> tuple[tuple[str, str | None], ...]:
    return tuple((path, library_version(root / path.lstrip("/"))) for path in paths)


def parse_torch_version(source: str) -> tuple[str | None, str | None]:
    """The CUDA and HIP that a torch/version.py names."""
    found = []
    for name in ("cuda", "hip"):
        match = re.search(rf"^{name}(?:\s*:[^=\n]+)?\s*=\s*['\"]([\w.]+)['\"]", source, re.MULTILINE)
        found.append(match[1] if match else None)
    return found[0], found[1]


def library_version(path: Path) -> str | None:
    """The version of a libnccl: from the name it links to, else from the text it prints."""
    try:
        if name := re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)", path.resolve().name):
            return name[1]
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _SAYS_ITSELF.search(content)
            return match[1].decode() if match else None
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None


_UNLIMITED = 1 << 60  # version 1 writes no limit as a number like 9223372036854771712
_IPC_LOCK = 14  # a capability: without it memlock counts


class Limits(Struct, frozen=True):
    """What a process may use; None where there is no limit, or it is not known. memory and memory_used: bytes.
    processors: cores' worth of time. tasks: processes and threads. memlock: bytes. may_lock: memlock does not count for
    this process. shm and shm_free: bytes of /dev/shm. leftovers: NCCL's segments."""

    memory: int | None = None
    memory_used: int | None = None
    processors: float | None = None
    tasks: int | None = None
    memlock: int | None = None
    files: int | None = None
    processes: int | None = None
    may_lock: bool = False
    shm: int | None = None
    shm_free: int | None = None
    leftovers: int = 0


def read_limits(root: Path) -> Limits:
    """The limits of this process."""
    folders = _folders(root)
    limits = _ulimits(text(root / "proc/self/limits") or "")
    capabilities = field_of(text(root / "proc/self/status"), "CapEff")
    shm, free = _shm(root)
    memory = [_limit(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    tasks = [_limit(folder / "pids.max") for folder in folders]
    quotas = [_quota(folder) for folder in folders]
    used = next(
        (value for folder in folders for name in ("memory.current", "memory.usage_in_bytes")
         if (value := number(folder / name)) is not None), None,
    )  # fmt: skip
    return Limits(
        min((one for one in memory if one is not None), default=None), used,
        min((one for one in quotas if one is not None), default=None),
        min((one for one in tasks if one is not None), default=None), limits.get("Max locked memory"),
        limits.get("Max open files"), limits.get("Max processes"), bool(int(capabilities or "0", 16) >> _IPC_LOCK & 1),
        shm, free, sum(1 for entry in entries(root / "dev/shm") if entry.name.startswith("nccl-")),
    )  # fmt: skip


def field_of(status: str | None, name: str) -> str | None:
    """A field of a file like /proc/self/status."""
    match = re.search(rf"^{re.escape(name)}:\s*(\S+)", status or "", re.MULTILINE)
    return match[1] if match else None


def _folders(root: Path) -> list[Path]:
    """The folders of this process's cgroups and of those above them, the nearest first. Inside a container the path in
    /proc is the host's and often leads nowhere; what is mounted is then the process's own."""
    mount = root / "sys/fs/cgroup"
    found = []
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        tops = [mount, mount / "unified"] if not controllers else [mount / controllers]
        tops += [mount / name for name in controllers.split(",") if name and "=" not in name and "," in controllers]
        parts = PurePosixPath("/" + path.lstrip("/"))
        for top in tops:
            for one in (parts, *parts.parents):
                if ".." not in one.parts:
                    found.append(top / str(one).lstrip("/"))
    return list(dict.fromkeys(found))


def _limit(path: Path) -> int | None:
    value = number(path)
    return None if value is None or value <= 0 or value >= _UNLIMITED else value


def _quota(folder: Path) -> float | None:
    """Processors: quota over period, of version 2 and 1."""
    match = re.match(r"(\d+) (\d+)", text(folder / "cpu.max") or "")
    if match:
        return int(match[1]) / max(int(match[2]), 1)
    quota, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _ulimits(table: str) -> dict[str, int]:
    """Soft limits of /proc/self/limits by name; without those that are unlimited."""
    found = {}
    for line in table.splitlines()[1:]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) >= 3 and cells[1].isdigit():
            found[cells[0]] = int(cells[1])
    return found


def _shm(root: Path) -> tuple[int | None, int | None]:
    try:
        size = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize


class Near(Struct, frozen=True):
    """Where a device sits. numa: node, None where not known. cpus: the cores of its node."""

    numa: int | None
    cpus: frozenset[int]


class Cpus(Struct, frozen=True):
    """allowed: cores this process may use. nodes: cores by NUMA node. balancing: whether the kernel moves memory
    between nodes by itself. virtual: a hypervisor runs this machine."""

    allowed: frozenset[int]
    nodes: dict[int, frozenset[int]]
    balancing: bool = False
    virtual: bool | None = None


def read_cpus(root: Path) -> Cpus:
    """What /proc and /sys say of the host's cores."""
    nodes = {
        int(folder.name[4:]): cores(text(folder / "cpulist"))
        for folder in entries(root / "sys/devices/system/node")
        if folder.name.startswith("node") and folder.name[4:].isdigit()
    }
    information = text(root / "proc/cpuinfo")
    return Cpus(
        cores(field_of(text(root / "proc/self/status"), "Cpus_allowed_list")),
        nodes,
        (number(root / "proc/sys/kernel/numa_balancing") or 0) > 0,
        None if information is None else "hypervisor" in information,
    )


def read_near(root: Path, bus_id: str | None) -> Near:
    """Where the PCI device of this address sits."""
    folder = root / "sys/bus/pci/devices" / (bus_id or "none")
    numa = number(folder / "numa_node")
    return Near(numa if numa is not None and numa >= 0 else None, cores(text(folder / "local_cpulist")))
