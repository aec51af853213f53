"""The machine that NCCL prints, in the forms of all versions and of RCCL."""

from __future__ import annotations

from pathlib import Path

from traceops.fabric.nccl import NcclLog
from traceops.fabric.readers.nccl_log import read_nccl_log


def read(tmp_path: Path, *lines: str) -> NcclLog:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return read_nccl_log([str(path)])


def test_diverted_paths_of_gpus_on_one_switch(tmp_path: Path) -> None:
    head = "vm:7:7 [0] NCCL INFO "
    lines = [
        "=== System : maxBw 12.0 totalBw 12.0 ===",
        "CPU/0-1 (1/1/2)",
        "+ PCI[24.0] - PCI/0-17000 (1000c03015d91d25)",
        "              + PCI[24.0] - GPU/0-19000 (0)",
        "              + PCI[24.0] - GPU/0-1a000 (1)",
        "              + PCI[24.0] - PCI/0-1b000 (1000c03015d91d25)",
        "                            + PCI[24.0] - GPU/0-1c000 (2)",
        "+ PCI[24.0] - GPU/0-2d000 (3)",
        "==========================================",
        "GPU/0-19000 :GPU/0-1a000 (4/24.0/PHB) GPU/0-1c000 (4/24.0/PHB) GPU/0-2d000 (4/24.0/PHB) ",
    ]
    (machine,) = read(tmp_path, *(head + line for line in lines)).machines
    kinds = {pair: path.kind for pair, path in machine.paths.items()}
    assert kinds == {("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "PXB", ("GPU0", "GPU3"): "PHB"}
    assert [gpu.numa for gpu in machine.gpus] == [1, 1, 1, 1]


def test_devices_around_gpus(tmp_path: Path) -> None:
    """From 2.29 on a GPU is inside a device, which has the links."""
    lines = [
        "=== System : maxBw 24.0 totalBw 48.0 ===",
        "CPU/0-0 (1/1/2)",
        "+ PCI[12.0] - PCI/0-7000 (10b5874710b58747)",
        "              + PCI[12.0] - DEV/0-b000 (100266a3106b0203)",
        "                            + LOC[5000.0] - GPU/0-b000",
        "                            + XGMI[24.0] - DEV/0-e000",
        "              + PCI[12.0] - DEV/0-e000 (100266a3106b0203)",
        "                            + LOC[5000.0] - GPU/0-e000",
        "                            + XGMI[24.0] - DEV/0-b000",
        "+ PCI[1.5] - NIC/0-3000",
        "GPU/0-b000 :GPU/0-e000 (3/24.0/XGMI) DEV/0-b000 (1/5000.0/LOC) DEV/0-e000 (2/24.0/XGMI) ",
    ]
    (machine,) = read(tmp_path, *(f"vm:7:7 [0] NCCL INFO {line}" for line in lines)).machines
    assert [(gpu.bus_id, gpu.numa) for gpu in machine.gpus] == [("0000:0b:00.0", 0), ("0000:0e:00.0", 0)]
    assert {pair: path.kind for pair, path in machine.paths.items()} == {("GPU0", "GPU1"): "XGMI"}


def test_amd(tmp_path: Path) -> None:
    head = "vm:7:7 [0] NCCL INFO "
    lines = [
        "=== System : maxBw 96.0 totalBw 144.0 ===",
        "CPU/0 (1/2/-1)",
        "+ PCI[24.0] - GPU/C1000 (0)",
        "              + XGMI[48.0] - GPU/C6000",
        "+ PCI[24.0] - GPU/C6000 (1)",
        "              + XGMI[48.0] - GPU/C1000",
        "GPU/C1000 :GPU/C1000 (0/5000.000000/LOC) GPU/C6000 (1/48.000000/XGMI) CPU/0 (1/24.000000/PHB) ",
        "Pattern 4, crossNic 0, nChannels 2, bw 48.000000/48.000000, type XGMI/PIX, sameChannels 1",
    ]
    init = "comm 0x9e rank 0 nranks 2 cudaDev 0 busId c1000 localSize 2 used 2048 bytes on core 3 - Init COMPLETE"
    log = read(tmp_path, "RCCL version : 2.21.5-main:a29a210+", *(head + line for line in [*lines, init]))
    assert log.nccl_versions == ("RCCL 2.21.5-main:a29a210+",)
    assert log.communicators[0].graphs[0].intra_type == "XGMI"
    path = log.machines[0].paths["GPU0", "GPU1"]
    assert (path.kind, path.gbs) == ("XGMI", 48.0)
