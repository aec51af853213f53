"""GPUs, their links and the driver's log: real text of machines that are well and of some that are not."""

from __future__ import annotations

import pytest
from looks_help import HEALTHY, one, smi, wrong

from traceops.fabric.model import Path as Way
from traceops.machine.platform import parse_nvlink_status, parse_p2p
from traceops.machine.smi import Smi, parse_smi
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
