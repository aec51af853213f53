"""What a reader of a run must know about the machine and the software, collected without secrets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from traceops.capture.manifest import DeviceRecord, GitState
from traceops.version import __version__

# Only variables that change how a training runs; names that could hold credentials never match.
_PREFIXES = (
    "NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "KMP_", "GLOO_", "FI_", "UCX_", "RDMAV_",
    "HSA_", "ROCR_", "HIP_", "RCCL_", "KINETO_",
)  # fmt: skip
_NAMES = (
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST",
    "SLURM_NODELIST", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND", "SLURM_MEM_BIND",
)  # fmt: skip
# What was checked out where HEAD is detached, as CI leaves it: the branch of a pull request first.
_CI_BRANCH = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
_SECRET = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "API_KEY", "AUTH")


def environment_that_matters(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that change how a distributed training runs, sorted by name. Bytes that are no UTF-8
    are written as escapes: JSON could not hold them."""
    return {
        printable(name): printable(value)
        for name, value in sorted(environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not any(word in name for word in _SECRET)
    }


def printable(text: str) -> str:
    """`text` of the environment with escapes for bytes that are no UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def software_versions() -> dict[str, str | None]:
    """Versions that can be told without importing torch; None where a package is missing."""
    try:
        torch_version: str | None = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch_version = None
    return {
        "traceops_version": __version__,
        "python_version": platform.python_version(),
        "torch_version": torch_version,
    }


def git_state(folder: Path, environ: Mapping[str, str] = os.environ) -> GitState | None:
    """Commit, branch and dirty flag of the work tree around `folder`; None where there is none, or no git. branch: None
    where HEAD is detached and no CI says in `environ` which one it checked out."""
    if (commit := _git(folder, "rev-parse", "HEAD")) is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if (branch := _git(folder, "rev-parse", "--abbrev-ref", "HEAD")) == "HEAD":
        branch = next((environ[name] for name in _CI_BRANCH if environ.get(name)), None)
    return {"commit": commit, "branch": branch, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def device_of_this_process() -> DeviceRecord:
    """Type, index, name, uuid and memory of the current device; null where the device has none. Wakes up no GPU and
    loads no torch: before the training has done so the answer is the CPU."""
    if (torch := sys.modules.get("torch")) is None or not torch.cuda.is_initialized():
        return {
            "type": "cpu", "index": None, "name": platform.processor() or platform.machine(),
            "uuid": None, "memory_bytes": None,
        }  # fmt: skip
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {
        "type": "cuda", "index": index, "name": properties.name,
        "uuid": None if uuid is None else str(uuid), "memory_bytes": properties.total_memory,
    }  # fmt: skip


def peak_memory() -> tuple[int | None, int | None]:
    """Most bytes that tensors held on the current GPU so far, and that the allocator held; None without one."""
    if (torch := sys.modules.get("torch")) is None or not torch.cuda.is_initialized():
        return None, None
    return int(torch.cuda.max_memory_allocated()), int(torch.cuda.max_memory_reserved())


def torch_facts() -> dict[str, Any]:
    """CUDA, NCCL and driver versions and the backend in use, as far as this process knows them by now."""
    if (torch := sys.modules.get("torch")) is None:
        return {}
    dist = sys.modules.get("torch.distributed")
    grouped = dist is not None and dist.is_available()
    on_gpu = torch.cuda.is_initialized()
    nccl = grouped and dist.is_nccl_available() and on_gpu  # type: ignore[union-attr]
    return {
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "hip_version": torch.version.hip,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "driver_version": _driver_version() if on_gpu else None,
        "backend": dist.get_backend() if grouped and dist.is_initialized() else None,  # type: ignore[union-attr]
    }


def _driver_version() -> str | None:
    try:
        text = Path("/sys/module/nvidia/version").read_text()
    except OSError:
        return None
    return text.strip() or None


def script_name() -> str:
    """Name of the running program, fit for a folder name."""
    main = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) is not None and spec.name not in (None, "__main__"):
        name = spec.name.removesuffix(".__main__").rpartition(".")[2]
    else:
        name = Path(getattr(main, "__file__", None) or sys.argv[0] or "python").stem
    return name if name and name not in ("-c", "-") else "python"


def usable_cores() -> int | None:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def host() -> str:
    """Name of this machine, as in trace file names."""
    return platform.node() or os.uname().nodename
