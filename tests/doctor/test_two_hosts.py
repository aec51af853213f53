"""The doctor on two hosts that are network namespaces of this one, with a slow link between them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from started import environment

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_MBITS = 100


def _try(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a link of 100 Mbit/s; skips where they cannot be made."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here: two hosts cannot be played")
    names = (f"traceops_{os.getpid()}_a", f"traceops_{os.getpid()}_b")
    try:
        for name in names:
            _try("ip", "netns", "add", name)
            _try("ip", "-n", name, "link", "set", "lo", "up")
        _try("ip", "link", "add", "net0", "netns", names[0], "type", "veth", "peer", "name", "net0", "netns", names[1])
        for number, name in enumerate(names, 1):
            _try("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "net0")
            _try("ip", "-n", name, "link", "set", "net0", "up")
            limit = ("tbf", "rate", f"{_MBITS}mbit", "burst", "64kb", "latency", "400ms")
            _try("tc", "-n", name, "qdisc", "add", "dev", "net0", "root", *limit)
            _try("ip", "netns", "exec", name, "unshare", "--uts", "hostname", f"10.77.0.{number}")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    yield names
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _doctor(space: str, node: int, folder: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    # gloo asks for the address of the host's name, and an address as the name needs no name server
    script = f'hostname 10.77.0.{node + 1}; exec "$@"'
    doctor = [
        sys.executable, "-m", "traceops", "doctor", "--device", "cpu", "--nproc", "1", "--quick", "-o", str(folder),
        "--format", "json", "--nnodes", "2", "--node-rank", str(node), "--master-addr", "10.77.0.1", "-q",
    ]  # fmt: skip
    return subprocess.Popen(
        ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", script, "sh", *doctor],
        env=environment(**environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_wrong_interface_on_one_node_is_found_and_the_slow_link_between_them_said(tmp_path, spaces):
    second = _doctor(spaces[1], 1, tmp_path / "second", {"GLOO_SOCKET_IFNAME": "nosuch0"})
    first = _doctor(spaces[0], 0, tmp_path / "first", {})
    errors = first.communicate()[1]
    assert first.returncode == 0, errors
    assert second.communicate()[0] == "" and second.returncode == 0
    assert not (tmp_path / "second").exists()  # one report, of node 0

    told = json.loads((tmp_path / "first" / "doctor.json").read_text())
    assert told["hosts"] == ["10.77.0.1", "10.77.0.2"]
    starts = [trial for trial in told["trials"] if trial["name"] == "start" and not trial["unset"]]
    outcomes = {tuple(trial["hosts"]): trial["outcome"] for trial in starts}
    assert outcomes[("10.77.0.1",)] == "ok" and outcomes[("10.77.0.2",)] == "failed"
    assert told["settings"]["unset"] == ["GLOO_SOCKET_IFNAME"]

    both = [trial for trial in told["trials"] if trial["hosts"] == told["hosts"] and trial["outcome"] == "ok"]
    rows = [row for trial in both for row in trial["measured"] if row["op"] == "all_reduce"]
    largest = max(rows, key=lambda row: row["bytes"])
    assert 0.2 < largest["busbw_gbs"] / (_MBITS / 8000) < 1.3
    [look] = [look for look in told["looks"] if look["what"] == "all-reduce between the nodes"]
    assert look["level"] == "error"
