"""GPUs, their links and the driver's log: looked at, or read from what people save of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest
from looks_help import DATA, HEALTHY, one, smi, wrong
from saved_help import HEAD as NVSMI
from saved_help import saved, smi_text

from traceops.core.errors import InputError
from traceops.doctor.checkup import check_files
from traceops.doctor.model import Checkup
from traceops.fabric.model import Path as Way
from traceops.machine.platform import parse_nvlink_status, parse_p2p
from traceops.machine.saved_programs import ONLY_TROUBLE, SEVERAL_LISTS, SEVERAL_TABLES, parse_environment
from traceops.machine.smi import Smi, parse_smi
from traceops.machine.smi_table import lists_of_gpus, lost_gpus, of_one_machine, tables, the_same_gpus
from traceops.machine.xids import DriverLog, parse_driver_log, parse_xids
from traceops.rules.machine.gpus import judge_gpus, judge_xids
from traceops.rules.machine.links import judge_lanes, judge_nvlink, judge_p2p

# Pieces of influxdata/telegraf, plugins/inputs/nvidia_smi/testdata, MIT.
T4 = """<?xml version="1.0" ?><nvidia_smi_log><driver_version>515.105.01</driver_version>
<cuda_version>11.7</cuda_version><gpu id="00000000:00:1E.0"><product_name>Tesla T4</product_name>
<persistence_mode>Disabled</persistence_mode><mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig>
</mig_mode><pci><pci_bus_id>00000000:00:1E.0</pci_bus_id><pci_gpu_link_info><pcie_gen><max_link_gen>3</max_link_gen>
<current_link_gen>3</current_link_gen></pcie_gen><link_widths><max_link_width>16x</max_link_width>
<current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info></pci>
<performance_state>P0</performance_state><clocks_throttle_reasons>
<clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle></clocks_throttle_reasons>
<fb_memory_usage><total>15360 MiB</total><used>1032 MiB</used></fb_memory_usage><compute_mode>Default</compute_mode>
<processes><process_info><pid>675</pid><type>G</type><process_name>/usr/lib/xorg/Xorg</process_name>
<used_memory>22 MiB</used_memory></process_info></processes></gpu></nvidia_smi_log>"""
MIG = """<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode></gpu>
<gpu id="00000000:41:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode></gpu></nvidia_smi_log>"""


def read(xml: str) -> Smi:
    parsed = parse_smi(xml)
    assert parsed is not None
    return parsed


def test_healthy_gpus() -> None:
    parsed = read(HEALTHY)
    looks = judge_gpus(parsed, "h")
    assert wrong(looks) == {}
    assert one(looks, "GPUs").found == "4 × NVIDIA H200, 140 GiB"
    assert one(looks, "memory errors").found == "none; ECC is on"
    assert one(looks, "clocks").found == "345 MHz of 1980, idle; not lowered"
    assert parsed.cuda == "13.0" and parsed.gpus[3].power_limit == 700 and parsed.gpus[0].idle


def test_what_nvidia_smi_does_not_tell_of_memory_and_clocks_is_not_called_well() -> None:
    untold = {look.what for look in judge_gpus(read(MIG), "h") if look.level == "not_evaluated"}
    assert untold == {"memory errors", "clocks"}
    slow = judge_gpus(read(smi(("hw_slowdown>Not Active", "hw_slowdown>Active"))), "h")
    assert {look.what for look in slow if look.level == "ok"}.isdisjoint({"clocks"})
    worn = judge_gpus(read(smi(("<remapped_row_unc>0", "<remapped_row_unc>4"))), "h")
    assert "memory errors" not in {look.what for look in worn}


@pytest.mark.parametrize(
    ("change", "what", "level"),
    [
        (("<remapped_row_failure>No", "<remapped_row_failure>Yes"), "broken memory", "error"),
        (("<remapped_row_pending>No", "<remapped_row_pending>Yes"), "repair waits", "warning"),
        (("<remapped_row_unc>0", "<remapped_row_unc>4"), "memory repaired", "note"),
        (("<unrepairable_memory>No", "<unrepairable_memory>Yes"), "broken memory", "error"),
        (("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"), "recovery", "error"),
        (("hw_slowdown>Not Active", "hw_slowdown>Active"), "throttled", "warning"),
        (("sw_thermal_slowdown>Not Active", "sw_thermal_slowdown>Active"), "throttled", "warning"),
        (("<gpu_temp_tlimit>57 C", "<gpu_temp_tlimit>1 C"), "temperature", "warning"),
        (("<current_power_limit>700.00 W", "<current_power_limit>400.00 W"), "power limit", "warning"),
        (("<compute_mode>Default", "<compute_mode>Exclusive_Process"), "compute mode", "note"),
        (("<compute_mode>Default", "<compute_mode>Prohibited"), "compute mode", "error"),
        (("<persistence_mode>Enabled", "<persistence_mode>Disabled"), "persistence mode", "note"),
        (("<used>0 MiB", "<used>90000 MiB"), "in use by others", "warning"),
    ],
)
def test_one_gpu_that_is_not_well(change: tuple[str, str], what: str, level: str) -> None:
    looks = judge_gpus(read(smi(change, gpu=1)), "h")
    assert wrong(looks) == {what: level}
    look = one(looks, what)
    assert look.found.startswith("GPU1: ") and look.facts == {"gpus": [1]}
    assert "{" not in look.advice


def test_mps_wants_one_process_at_a_time() -> None:
    """As on a published T4 in EXCLUSIVE_PROCESS, whose one process is the server of MPS."""
    server = """<processes><process_info><pid>25384</pid><type>C</type>
        <process_name>nvidia-cuda-mps-server</process_name><used_memory>26 MiB</used_memory></process_info>"""
    mode = ("<compute_mode>Default", "<compute_mode>Exclusive_Process")
    assert wrong(judge_gpus(read(smi(mode, ("<processes>", server))), "h")) == {}


def test_a_busy_gpu_at_its_power_limit_is_as_it_should_be() -> None:
    busy = smi(("gpu_idle>Active", "gpu_idle>Not Active"), ("sw_power_cap>Not Active", "sw_power_cap>Active"), gpu=2)
    assert wrong(judge_gpus(read(busy), "h")) == {}


def test_errors_of_a_gpu_that_has_new_ones_are_not_called_of_no_consequence() -> None:
    """As of a published V100 with one new error and 7627 of the past."""
    ecc = """<ecc_errors><volatile><double_bit><total>1</total></double_bit></volatile>
        <aggregate><double_bit><total>7627</total></double_bit></aggregate></ecc_errors>"""
    worn = smi(("<ecc_errors>", f"{ecc}<other>"), ("</ecc_errors>\n", "</other>\n"))
    looks = judge_gpus(read(worn), "h")
    assert wrong(looks) == {"ECC errors": "warning"}
    assert one(looks, "ECC errors").found == "GPU1: 1 uncorrectable (7627 ever)"


def test_pages_retired_for_single_and_for_double_bit_errors_are_counted_together() -> None:
    """As of a published K80 that has one of each."""
    page = "<retired_pages><{0}_retirement><retired_count>1</retired_count></{0}_retirement></retired_pages>"
    both = page.format("multiple_single_bit").replace("</retired_pages>", "") + page.format("double_bit").replace(
        "<retired_pages>", ""
    )
    looks = judge_gpus(read(smi(("<ecc_errors>", f"{both}<ecc_errors>"))), "h")
    assert "2 pages retired" in one(looks, "memory repaired").found


def test_an_idle_gpu_far_below_its_power_limit_has_not_reached_it() -> None:
    """A published RTX 2080 Ti with nothing to do names the cap at 19 of 250 W: 'the power limit is reached'."""
    cap = ("sw_power_cap>Not Active", "sw_power_cap>Active")
    assert wrong(judge_gpus(read(smi(cap, gpu=2)), "h")) == {}
    draw = ("<current_power_limit>700.00 W", "<current_power_limit>80.00 W")
    default = ("<default_power_limit>700.00 W", "<default_power_limit>80.00 W")
    at_it = wrong(judge_gpus(read(smi(cap, draw, default, gpu=2)), "h"))
    assert at_it["clocks lowered"] == "note"


def test_the_clocks_that_a_card_has_by_default_were_set_by_nobody() -> None:
    """As a K20m has them, below its highest."""
    lower = ("applications_clocks_setting>Not Active", "applications_clocks_setting>Active")
    other = "<applications_clocks>\n\t\t\t<graphics_clock>"
    assert wrong(judge_gpus(read(smi(lower, gpu=2)), "h")) == {}
    changed = smi(lower, (f"{other}1980", f"{other}1500"), gpu=2)
    assert wrong(judge_gpus(read(changed), "h")) == {"clocks lowered": "note"}


def test_the_number_a_program_of_others_is_named_by() -> None:
    process = (
        "<processes><process_info><pid>812</pid><type>C</type><process_name>/usr/bin/python</process_name>"
        "<used_memory>30000 MiB</used_memory></process_info></processes>"
    )
    busy = smi(("<used>0 MiB", "<used>30000 MiB"), ("<fabric>", f"{process}<fabric>"), gpu=0)
    look = one(judge_gpus(read(busy), "h"), "in use by others")
    assert "python (pid 812)" in look.found and look.level == "warning"


def test_xorg_on_a_t4_is_nobody_else_and_its_eight_lanes_are_the_cloud_s() -> None:
    t4 = read(T4)
    assert wrong(judge_gpus(t4, "h")) == {"persistence mode": "note", "in use by others": "note"}
    assert wrong(judge_lanes(t4.gpus, "h")) == {"GPU link": "note"}


def test_mig_keeps_ranks_apart() -> None:
    assert wrong(judge_gpus(read(MIG), "h")) == {"MIG": "warning"}


def test_a_gpu_with_half_its_lanes() -> None:
    narrow = read(smi(("<current_link_width>16x", "<current_link_width>8x"), gpu=2))
    assert wrong(judge_lanes(narrow.gpus, "h")) == {"link of GPU2": "warning"}
    assert one(judge_lanes(narrow.gpus, "h"), "link of GPU2").found == "x8 of x16"


def test_an_idle_gpu_may_lower_its_generation_a_slot_may_not() -> None:
    idle = read(smi(("<current_link_gen>5", "<current_link_gen>1"), gpu=2))
    assert wrong(judge_lanes(idle.gpus, "h")) == {}
    slot = read(smi(("<max_link_gen>5", "<max_link_gen>3"), ("<current_link_gen>5", "<current_link_gen>3"), gpu=2))
    assert wrong(judge_lanes(slot.gpus, "h")) == {"link of GPU2": "warning"}


@pytest.mark.parametrize(
    ("change", "level"),
    [
        (("<state>Completed", "<state>In Progress"), "error"),
        (("<status>Success", "<status>Insufficient Resources"), "error"),
        (("<bandwidth>N/A", "<bandwidth>Degraded"), "warning"),
        (("<route_unhealthy>N/A", "<route_unhealthy>False"), "ok"),
    ],
)
def test_the_fabric_of_nvswitch(change: tuple[str, str], level: str) -> None:
    look = one(judge_nvlink(read(smi(change)).gpus, None, {}, "h"), "NVSwitch fabric")
    assert look.level == level
    assert level == "ok" or "GPU1" in look.found


def links(*counts: int) -> str:
    """As ``nvidia-smi nvlink -s`` prints; a GPU with no link up says so in one line (NVIDIA/open-gpu-kernel-modules
    issue 1150)."""
    none = "NVML: Unable to retrieve Nvlink information as all links are inActive\n"
    return "".join(
        f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})\n"
        + ("".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(count)) or none)
        for gpu, count in enumerate(counts)
    )


def test_nvlink_of_one_gpu_against_its_siblings() -> None:
    gpus = read(HEALTHY).gpus
    assert wrong(judge_nvlink(gpus, parse_nvlink_status(links(18, 18, 18, 18)), {}, "h")) == {}
    fewer = judge_nvlink(gpus, parse_nvlink_status(links(18, 17, 18, 18)), {}, "h")
    assert wrong(fewer) == {"NVLink of GPU1": "warning"}
    assert one(fewer, "NVLink of GPU1").found == "17 of 18 links up"
    none = judge_nvlink(gpus, parse_nvlink_status(links(18, 18, 0, 18)), {}, "h")
    assert wrong(none) == {"NVLink of GPU2": "error"}
    assert "CUDA_VISIBLE_DEVICES=0,1,3" in one(none, "NVLink of GPU2").advice
    assert wrong(judge_nvlink(gpus, parse_nvlink_status(links(0, 0, 0, 0)), {}, "h")) == {"NVLink": "error"}


def test_links_that_are_inactive_count_as_down() -> None:
    # Azure/azhpc-diagnostics issue 73
    text = """GPU 3: Tesla V100-SXM2-32GB (UUID: ...)
         Link 0: 25.781 GB/s
         Link 1: 25.781 GB/s
         Link 2: 25.781 GB/s
         Link 3: <inactive>
         Link 4: 25.781 GB/s
         Link 5: <inactive>
"""
    assert (len(parse_nvlink_status(text)[3].up), parse_nvlink_status(text)[3].down) == (4, 2)


def test_cards_without_a_bridge_are_as_they_were_bought() -> None:
    cards = HEALTHY.replace("NVIDIA H200<", "NVIDIA RTX A6000<").replace("<state>Completed", "<state>N/A")
    gpus = read(cards).gpus
    assert wrong(judge_nvlink(gpus, parse_nvlink_status(links(0, 0, 0, 0)), {}, "h")) == {}
    paths = {("GPU0", "GPU1"): Way("NV", 4), ("GPU0", "GPU2"): Way("NODE"), ("GPU1", "GPU2"): Way("NODE")}
    bridged = judge_nvlink(gpus, parse_nvlink_status(links(4, 4, 0, 0)), paths, "h")
    assert wrong(bridged) == {"NVLink of GPU2": "note", "NVLink of GPU3": "note"}


def matrix(*rows: str) -> str:
    head = "\t".join(f"GPU{index}" for index in range(len(rows)))
    return f" \t\x1b[4m{head}\t\x1b[0m\n" + "".join(f" GPU{index}\t{row}\t\n" for index, row in enumerate(rows))


def test_direct_access() -> None:
    ok = parse_p2p(matrix("X\tOK", "OK\tX") + "\nLegend:\n\n  X    = Self\n  GNS  = GPU not supported\n")
    assert ok == {(0, 1): "OK", (1, 0): "OK"}
    assert wrong(judge_p2p(ok, {}, False, "h")) == {}
    geforce = parse_p2p(matrix("X\tGNS", "GNS\tX"))
    assert wrong(judge_p2p(geforce, {}, False, "h")) == {"direct access (P2P)": "note"}
    chipset = parse_p2p(matrix("X\tCNS\tOK", "CNS\tX\tOK", "OK\tOK\tX"))
    assert wrong(judge_p2p(chipset, {}, True, "h")) == {"direct access (P2P)": "warning"}
    assert "0-1 CNS" in judge_p2p(chipset, {}, True, "h")[0].found
    cloud = parse_p2p(matrix("X\tCNS", "CNS\tX"))
    assert wrong(judge_p2p(cloud, {}, True, "h")) == {"direct access (P2P)": "note"}
    assert wrong(judge_p2p(cloud, {}, False, "h")) == {"direct access (P2P)": "warning"}
    refused = judge_p2p(parse_p2p(matrix("X\tNS", "NS\tX")), {("GPU0", "GPU1"): Way("NV", 18)}, False, "h")
    assert wrong(refused) == {"direct access (P2P)": "error"}


# Lines of leptonai/gpud pulls 46 and 1174, NVIDIA/NVSentinel issue 155 and stas00/ml-engineering.
LOG = """\
[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception
[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Global Exception
NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.
NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus
NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000)
NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x00000000)
NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error
NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
"""


def test_xids_tell_broken_hardware_from_a_program_s_mistake() -> None:
    looks = judge_xids(parse_driver_log(LOG), None, {"0000:44:00.0": "GPU5"}, "h")
    assert wrong(looks) == {
        "Xid 13": "note", "Xid 63": "warning", "Xid 79": "error", "Xid 145": "warning", "Xid 149": "error",
        "Xid 94": "warning", "Xid 154": "error",
    }  # fmt: skip
    assert one(looks, "Xid 79").found.startswith("GPU5: ")
    assert one(looks, "Xid 13").facts["count"] == 2


def test_a_gpu_that_is_lost_without_an_xid() -> None:
    lost = """[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
"""
    assert [xid.code for xid in parse_xids(lost)] == [79]
    assert wrong(judge_xids(parse_driver_log(lost), None, {}, "h")) == {"Xid 79": "error"}


def test_a_log_that_may_not_be_read_is_no_clean_log() -> None:
    refused = "dmesg: read kernel buffer failed: Operation not permitted"
    (look,) = judge_xids(DriverLog(), refused, {}, "h")
    assert look.level == "not_evaluated" and "Operation not permitted" in look.why


HEAD = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
"""
ROW = """\
|   {index}  {name:<18}  {on:<4}| 00000000:{bus:02X}:00.0 Off |{ecc:>21} |
| N/A   41C    P0    {draw}W / {cap}W |   1503MiB / {memory}MiB |      0%{mode:>13} |
|                               |                      |{mig:>21} |
+-------------------------------+----------------------+----------------------+
"""
SOUND = {"name": "Tesla V100-SXM2...", "on": "On", "ecc": "0", "draw": "55", "cap": "300", "memory": "16160",
         "mode": "Default", "mig": "N/A"}  # fmt: skip
PROCESSES = """\
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|=============================================================================|
|    0   N/A  N/A    122792      C   nvidia-cuda-mps-server             25MiB |
|    1   N/A  N/A      4711    C+G   python train.py                  1478MiB |
+-----------------------------------------------------------------------------+
"""
LIST = "GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-0)\nGPU 1: {second} (UUID: GPU-1)\n"
ENVIRONMENT = """\
PyTorch version: {torch}
CUDA used to build PyTorch: {cuda}
ROCM used to build PyTorch: N/A
Is CUDA available: {sees}
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: {driver}
[pip3] nvidia-nccl-cu12==2.26.2
[conda] nvidia-nccl-cu12          2.26.2                   pypi_0    pypi
"""
FITS = {"torch": "2.7.1+cu126", "cuda": "12.6", "sees": "True", "driver": "535.104.05"}


def table(*changes: dict[str, str]) -> str:
    rows = (ROW.format(index=at, bus=0x19 + at, **{**SOUND, **change}) for at, change in enumerate(changes))
    return HEAD + "".join(rows)


def states(checkup: Checkup) -> dict[str, str]:
    return {check.rule: check.status for check in checkup.checks}


def test_all_that_a_table_tells_is_read() -> None:
    found = of_one_machine(tables(f"node1: job starts\n{table({}, {'mig': 'Enabled*', 'ecc': 'Off'})}\n{PROCESSES}"))
    assert found is not None and (found.smi.driver, found.smi.cuda) == ("470.82.01", "11.4")
    assert (found.cut, found.half) == (True, 0)
    first, second = found.smi.gpus
    assert (first.index, first.name, first.bus_id) == (0, "Tesla V100-SXM2... (16 GiB)", "0000:19:00.0")
    assert (first.used, first.memory, first.temperature, first.power_draw) == (1503, 16160, 41, 55.0)
    assert (first.persistence, first.ecc, first.idle, first.compute_mode) == (True, True, False, "Default")
    assert (second.ecc, second.mig, second.mig_pending) == (False, True, True)
    assert [one.name for gpu in found.smi.gpus for one in gpu.processes] == [
        "nvidia-cuda-mps-server", "python train.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "rule", "level", "said"),
    [
        ("k80x8_prohibited", "TO-D005", "error", "GPU2, GPU6: Prohibited"),
        ("p40x2_exclusive", "TO-D005", "note", "all GPUs: Exclusive_Process"),
        ("two_models", "TO-D010", "note", "1 × NVIDIA GeForce RTX 2080 Ti, 1 × NVIDIA TITAN RTX; 22 to 24 GiB"),
        ("two_models_vllm", "TO-D010", "note", "1 × NVIDIA GeForce RTX 2080 Ti, 1 × NVIDIA GeForce RTX 3090"),
        ("old_driver", "TO-D502", "error", "1.3.1, built for CUDA 10.1.243"),
        ("fabric_waits", "TO-D102", "error", "In Progress on 1 GPU"),
        ("lost_gpu", "TO-D501", "error", "the GPU at 0000:62:00.0 (Unknown Error)"),
    ],
)
def test_what_was_wrong_on_real_machines_is_said(file: str, rule: str, level: str, said: str) -> None:
    looks = check_files([DATA / f"{file}.txt"]).looks
    wrong(looks)
    assert (level, said) in {(look.level, look.found) for look in looks if look.rule == rule}


def test_what_a_table_lacks_is_not_called_sound(tmp_path: Path) -> None:
    found = states(check_files(saved(tmp_path, smi=table({"name": "Tesla T4"}, {"name": "Tesla T4"}))))
    assert {found[rule] for rule in ("TO-D005", "TO-D006", "TO-D007", "TO-D008", "TO-D010")} == {"clear"}
    unknown = ("TO-D001", "TO-D002", "TO-D003", "TO-D004", "TO-D009", "TO-D102", "TO-D104")
    assert {found[rule] for rule in unknown} == {"not_evaluated"}


@pytest.mark.parametrize(
    ("change", "what", "level"),
    [
        ({"ecc": "3"}, "ECC errors", "warning"),
        ({"name": "Tesla T4", "cap": "150"}, "power limit", "warning"),
        ({"mig": "Enabled"}, "MIG", "warning"),
        ({"on": "Off"}, "persistence mode", "note"),
    ],
)
def test_what_is_wrong_with_one_gpu_of_a_table(change: dict[str, str], what: str, level: str, tmp_path: Path) -> None:
    same = {"name": change.get("name", SOUND["name"])}
    assert wrong(check_files(saved(tmp_path, smi=table(same, change))).looks) == {what: level}


def test_names_that_are_cut_off_may_hide_two_models(tmp_path: Path) -> None:
    cut = {"name": "NVIDIA GeForce ..."}
    look = one(check_files(saved(tmp_path, smi=table(cut, cut))).looks, "GPUs")
    assert (look.level, look.why) == ("not_evaluated", "nvidia-smi cut their names off: save nvidia-smi -L too")
    more = {**cut, "memory": "24576", "cap": "350"}
    looks = check_files(saved(tmp_path, smi=table(cut, more))).looks
    assert one(looks, "GPUs").found == "1 × NVIDIA GeForce ... (16 GiB), 1 × NVIDIA GeForce ... (24 GiB); 16 to 24 GiB"
    assert "power limit" not in wrong(looks)


def test_the_list_beside_a_table_has_the_whole_names(tmp_path: Path) -> None:
    paths = saved(tmp_path, smi=table({}, {}), names=LIST.format(second="Tesla V100-SXM2-16GB"))
    assert one(check_files(paths).looks, "GPUs").found == "2 × Tesla V100-SXM2-16GB, 16 GiB"
    paths = saved(tmp_path, smi=table({}, {}), names=LIST.format(second="Tesla V100-SXM2-32GB"))
    assert one(check_files(paths).looks, "GPUs").level == "note"


def test_a_list_tells_of_models_and_slices_alone(tmp_path: Path) -> None:
    text = LIST.format(second="Tesla V100-SXM2-16GB") + "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
    assert [gpu.mig for gpu in the_same_gpus(lists_of_gpus(text))] == [False, True]
    checkup = check_files(saved(tmp_path, names=text))
    assert wrong(checkup.looks) == {"MIG": "warning"}
    assert states(checkup)["TO-D010"] == "clear" and states(checkup)["TO-D005"] == "not_evaluated"


def test_nvidia_smi_q_tells_more_than_a_table(tmp_path: Path) -> None:
    paths = saved(tmp_path, all=f"{table({'mode': 'Prohibited'})}\n{smi_text({}, {})}")
    assert "compute mode" not in wrong(check_files(paths).looks)


def test_the_last_of_several_tables_counts_and_other_machines_are_told(tmp_path: Path) -> None:
    twice = table({"draw": "290", "ecc": "0"}) + table({"ecc": "3"})
    assert len(tables(twice)) == 2 and "ECC errors" in wrong(check_files(saved(tmp_path, a=twice)).looks)
    with pytest.raises(InputError, match=SEVERAL_TABLES):
        check_files(saved(tmp_path, b=table({}) + table({}, {})))
    lists = LIST.format(second="A") + LIST.format(second="B")
    with pytest.raises(InputError) as problem:
        check_files(saved(tmp_path, c=lists))
    assert SEVERAL_LISTS in str(problem.value)


@pytest.mark.parametrize("first", [{"mode": "Prohibited"}, {"ecc": "12"}, {"cap": "150"}, {"mig": "Enabled"}])
def test_trouble_of_a_node_is_not_lost_behind_a_sound_one_with_gpus_at_the_same_addresses(
    tmp_path: Path, first: dict[str, str]
) -> None:
    """Nodes of a cluster are alike: two tables in one file were taken for one machine, and the last one counted."""
    whole = {**SOUND, "name": "Tesla P40"}  # of a name that is cut off no limit is kept
    with pytest.raises(InputError, match=SEVERAL_TABLES):
        check_files(saved(tmp_path, a=table({**whole, **first}) + table(whole)))


def test_a_gpu_that_is_lost_while_somebody_looks_is_told(tmp_path: Path) -> None:
    """The tables before and after differ, and nothing of either was said."""
    words = "Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error\n"
    looks = check_files(saved(tmp_path, a=table({}, {}) + words + table({}))).looks
    assert "0000:1a:00.0" in one(looks, "lost GPU").found
    with pytest.raises(InputError, match=SEVERAL_TABLES):  # it works since, or the other machine's does
        check_files(saved(tmp_path, b=table({}) + words + table({}, {})))


def test_other_drivers_are_other_machines_or_another_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SEVERAL_TABLES):
        check_files(saved(tmp_path, a=table({}) + table({}).replace("470.82.01", "535.54.03")))


def test_torch_without_cuda_is_advised_by_no_unknown_version(tmp_path: Path) -> None:
    """'install torch built for CUDA None or older'."""
    told = ENVIRONMENT.format(**{**FITS, "torch": "2.7.1+cpu", "cuda": "None", "sees": "False"})
    advice = one(check_files(saved(tmp_path, a=told)).looks, "torch").advice
    assert advice.startswith("install torch built for a CUDA that the driver runs")


PERFORMANCE = """
GPU 00000000:{bus}:00.0
    Performance State                     : P0
    Clocks Throttle Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : {heat}
            HW Thermal Slowdown           : {heat}
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
"""


def test_a_part_of_nvidia_smi_q_tells_of_trouble_alone(tmp_path: Path) -> None:
    """The doctor itself asks for nvidia-smi -q -d PERFORMANCE,TEMPERATURE, and refused it."""
    head = NVSMI.format(count=2)
    parts = [PERFORMANCE.format(bus=bus, heat=heat) for bus, heat in (("19", "Not Active"), ("3B", "Active"))]
    checkup = check_files(saved(tmp_path, a=head + "".join(parts)))
    assert wrong(checkup.looks) == {"throttled": "warning"}
    assert one(checkup.looks, "throttled").found == "GPU1: the hardware cuts the clocks to half or less for heat"
    assert states(checkup)["TO-D001"] == states(checkup)["TO-D005"] == "not_evaluated"
    assert "TO-D010" not in {look.rule for look in checkup.looks if look.level == "ok"}
    assert [problem for _, problem in checkup.problems] == [ONLY_TROUBLE]
    three = NVSMI.format(count=3) + parts[0] + parts[1] + parts[1].replace("3B", "5D")
    assert one(check_files(saved(tmp_path, c=three)).looks, "throttled").found.startswith("GPU1, GPU2: ")
    with pytest.raises(InputError, match="give the whole output"):
        check_files(saved(tmp_path, b=head + parts[0]))


def test_a_piece_about_the_fabric_tells_of_trouble_alone(tmp_path: Path) -> None:
    piece = (DATA / "fabric_waits.txt").read_text()
    assert states(check_files(saved(tmp_path, a=piece)))["TO-D102"] == "fired"
    both = saved(tmp_path, b=piece * 2 + piece.replace("In Progress", "Not Started"))
    assert one(check_files(both).looks, "NVSwitch fabric").found == "In Progress on 2 GPUs, Not Started on 1 GPU"
    with pytest.raises(InputError):
        check_files(saved(tmp_path, c=piece.replace("In Progress", "Completed")))
    whole = saved(tmp_path, d=smi_text({}) + piece)
    assert "NVSwitch fabric" not in wrong(check_files(whole).looks)


def test_each_host_of_pdsh_has_its_table(tmp_path: Path) -> None:
    lines = [f"{host}: {line}" for host, change in (("a", {}), ("b", {"mode": "Prohibited"}))
             for line in table(change).splitlines()]  # fmt: skip
    looks = check_files(saved(tmp_path, all="\n".join(lines))).looks
    assert {look.host for look in looks if look.what == "compute mode"} == {"b"}


def test_a_table_that_is_cut_off_says_so(tmp_path: Path) -> None:
    whole = table({}, {})
    checkup = check_files(saved(tmp_path, cut=whole[: whole.rindex("| N/A")]))
    [(_, problem)] = checkup.problems
    assert problem.startswith("the table of nvidia-smi is cut off: 1 of its GPUs")
    assert one(checkup.looks, "GPUs").found.startswith("1 × ")


def test_a_server_of_mps_wants_the_exclusive_mode(tmp_path: Path) -> None:
    exclusive = {"mode": "E. Process"}
    assert "compute mode" in wrong(check_files(saved(tmp_path, a=table(exclusive))).looks)
    assert "compute mode" not in wrong(check_files(saved(tmp_path, a=table(exclusive) + PROCESSES)).looks)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
         "NVIDIA driver is installed and running.", "install the NVIDIA driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", "the driver was updated under it"),
        ("Failed to initialize NVML: Unknown Error", "a container that lost its devices"),
    ],
)  # fmt: skip
def test_nvidia_smi_that_failed(line: str, advice: str, tmp_path: Path) -> None:
    look = one(check_files(saved(tmp_path, a=f"$ nvidia-smi\n{line}\n")).looks, "NVIDIA driver")
    assert look.level == "error" and look.advice.startswith(advice) and line[:60] in look.why
    later = f"{line}\n{table({})}"  # it works since
    assert not wrong(check_files(saved(tmp_path, b=later)).looks)
    with pytest.raises(InputError):
        check_files(saved(tmp_path, c=f"We saw '{line}' last week.\n"))


def test_a_gpu_whose_numbers_cannot_be_read_is_no_other_model(tmp_path: Path) -> None:
    """As Lambda's page on a GSP that does not answer shows it; a number that is missing alone says nothing."""
    row = "ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 16160MiB |    ERR!      Default |"
    sick = table({"name": "Tesla T4"}, {"name": "ERR!", "ecc": "ERR!", "mig": "ERR!"})
    start = sick.rindex("| N/A   41C") + 1
    sick = sick[:start] + row + sick[sick.index("\n", start) :]
    looks = check_files(saved(tmp_path, a=sick)).looks
    assert wrong(looks) == {"lost GPU": "error"}
    assert one(looks, "lost GPU").found == "GPU1 at 0000:1a:00.0 (ERR! in place of its numbers)"
    assert one(looks, "GPUs").found == "1 × Tesla T4, 16 GiB"
    power = table({"name": "Tesla T4"}, {"name": "Tesla T4", "draw": "ERR!"}).replace("ERR!W", "ERR!")
    assert not wrong(check_files(saved(tmp_path, b=power)).looks)


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("GPU3: 0000:5F:00.0: Unknown Error", "GPU3 at 0000:5f:00.0"),
        ("GPU 0000:01:00.0: Not Found", "the GPU at 0000:01:00.0"),
        ("GPU0000:25:00.0: Unknown Error", "the GPU at 0000:25:00.0"),
        ("GPU2: Unknown Error", "GPU2"),
    ],
)
def test_the_words_on_a_lost_gpu(line: str, label: str) -> None:
    [lost] = lost_gpus(f"Unable to determine the device handle for {line}\n" * 2)
    assert lost.label == label


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({}, "ok", ""),
        ({"cuda": "13.0", "sees": "False"}, "error", "driver 535.104.05 is too old for it: torch sees no GPU"),
        ({"cuda": "13.0"}, "ok", ""),  # the driver's forward compatibility is installed
        ({"sees": "False"}, "not_evaluated", "torch finds no GPU, and these files do not show why"),
        ({"torch": "2.7.1+cpu", "cuda": "None", "sees": "False"}, "error", "it cannot use the 2 GPUs"),
        ({"sees": "", "driver": "None"}, "not_evaluated", "these files do not show whether torch finds GPUs"),
    ],
)
def test_whether_torch_fits_the_driver(change: dict[str, str], level: str, said: str, tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, env=ENVIRONMENT.format(**{**FITS, **change}))).looks
    look = one(looks, "torch")
    assert (look.level, look.why) == (level, said)
    assert one(looks, "NCCL").found == "2.26.2" and one(looks, "GPUs").found == "2 × NVIDIA A100-SXM4-80GB"


def test_the_variables_that_vllm_prints_are_judged(tmp_path: Path) -> None:
    plain = ENVIRONMENT.format(**FITS)
    told = f"{plain}vLLM Build Flags:\n  CUDA Archs: Not Set\n\nNCCL_P2P_DISABLE=1\nCUDA_MODULE_LOADING=LAZY\n"
    assert wrong(check_files(saved(tmp_path, env=told)).looks) == {"NCCL_P2P_DISABLE": "warning"}
    assert states(check_files(saved(tmp_path, env=plain)))["TO-D404"] == "not_evaluated"
    environment = parse_environment(plain + "NCCL_P2P_DISABLE=1\n")  # of the shell, not of the program
    assert environment is not None and environment.variables is None


def test_long_lines_take_time_that_grows_with_them() -> None:
    for text in (f"| {' ' * 200_000} | a | b |\n", f"|   0  {'a ' * 100_000}| {'b ' * 99} | c |\n"):
        assert not tables(HEAD + text)
    assert parse_environment("CUDA used to build PyTorch: " + " " * 300_000 + "b\n") is not None
