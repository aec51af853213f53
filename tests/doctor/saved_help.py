"""Outputs of nvidia-smi and of the kernel as people save them."""

from __future__ import annotations

from pathlib import Path

GPU = """GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-{bus}
    GPU Virtualization Mode
        Virtualization Mode               : None
    GPU Reset Status
        Reset Required                    : No
    PCI
        Bus Id                            : 00000000:{bus}:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : {idle}
        SW Power Cap                      : Not Active
        HW Slowdown                       : {slow}
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : {slow}
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 9221 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Compute Mode                          : {mode}
    Utilization
        Gpu                               : 0 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 2
            SRAM Threshold Exceeded       : No
    Retired Pages
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Uncorrectable Error               : 2
        Pending                           : {pending}
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 29 C
        GPU T.Limit Temp                  : 56 C
        GPU Slowdown T.Limit Temp         : -2 C
    GPU Power Readings
        Power Draw                        : 67.74 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Clocks
        Graphics                          : 86 MHz
        SM                                : 86 MHz
    Max Clocks
        SM                                : 1980 MHz
    Fabric
        State                             : Completed
        Status                            : Success
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 1002127
            Type                          : C
            Name                          : /usr/bin/python
            Used GPU Memory               : 9212 MiB

"""
SOUND = {"idle": "Active", "slow": "Not Active", "mode": "Default", "pending": "No"}
HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Wed Jul 31 11:22:39 2024
Driver Version                            : 535.161.08
CUDA Version                              : 12.2

Attached GPUs                             : {count}
"""
LINKS = """GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)
         Link 0: 25.781 GB/s
         Link 1: 25.781 GB/s
GPU 1: Tesla V100-SXM2-32GB (UUID: GPU-1)
         Link 0: 25.781 GB/s
         Link 1: <inactive>
GPU 2: Tesla V100-SXM2-32GB (UUID: GPU-2)
         Link 0: 25.781 GB/s
         Link 1: 25.781 GB/s
"""
P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n  GNS  = GPU not supported\n"
XID = "[ 12.5] NVRM: Xid (PCI:0000:3B:00): 79, pid=8910, GPU has fallen off the bus.\n"


def smi_text(*changes: dict[str, str]) -> str:
    gpus = (GPU.format(bus=f"{0x19 + 0x22 * at:02X}", **{**SOUND, **change}) for at, change in enumerate(changes))
    return HEAD.format(count=len(changes)) + "".join(gpus)


def saved(folder: Path, **texts: str) -> list[Path]:
    paths = [folder / f"{name}.txt" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths
