"""What programs printed about a host, in files that somebody saved: read as the live doctor reads it, and no more."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looks_help import HEALTHY, one, wrong
from saved_help import HEAD, LINKS, P2P, XID, saved, smi_text

from traceops.core.errors import InputError
from traceops.doctor.checkup import check_files
from traceops.machine.platform import p2p_matrices, parse_nvlink_status
from traceops.machine.saved import read_outputs
from traceops.machine.saved_programs import NOT_WHOLE, parse_environment
from traceops.machine.smi import parse_smi
from traceops.machine.smi_table import lists_of_gpus, tables
from traceops.machine.xids import parse_xids
from traceops.rules.machine.saved import judge_outputs


def test_the_text_is_read_as_the_xml_is() -> None:
    smi = parse_smi(smi_text({}, {"slow": "Active", "idle": "Not Active"}))
    assert smi is not None and (smi.driver, smi.cuda, len(smi.gpus)) == ("535.161.08", "12.2", 2)
    gpu = smi.gpus[1]
    assert (gpu.name, gpu.uuid, gpu.bus_id) == ("NVIDIA H100 80GB HBM3", "GPU-3B", "0000:3b:00.0")
    assert (gpu.memory, gpu.used, gpu.bar1, gpu.clock, gpu.most_clock) == (81559, 9221, 131072, 86, 1980)
    assert gpu.reasons == ("hw_slowdown", "hw_power_brake_slowdown") and not gpu.idle and gpu.tells_reasons
    assert gpu.pcie is not None and (gpu.pcie.most_generation, gpu.pcie.width) == (5, 16)
    assert (gpu.temperature, gpu.tlimit, gpu.power_limit, gpu.power_draw) == (29, 56, 700.0, 67.74)
    assert (gpu.ecc, gpu.uncorrectable, gpu.uncorrectable_ever, gpu.remapped) == (True, 0, 2, 2)
    assert (gpu.mig, gpu.persistence, gpu.virtual, gpu.fabric_state) == (False, True, "None", "Completed")
    [process] = gpu.processes
    assert (process.pid, process.kind, process.name, process.mib) == (1002127, "C", "/usr/bin/python", 9212)


def test_clocks_that_the_hardware_cut_are_found_in_the_text(tmp_path: Path) -> None:
    """As in a published output of eight H100 at 86 MHz, whose power brake is on."""
    checkup = check_files(saved(tmp_path, smi=smi_text({}, {"slow": "Active", "idle": "Not Active"})))
    assert wrong(checkup.looks) == {"throttled": "warning", "memory repaired": "note"}
    look = one(checkup.looks, "throttled")
    assert look.found == "GPU1: the hardware cuts the clocks to half or less: a power brake from outside is on"
    assert look.why == "86 MHz of 1980; the slowest GPU makes all ranks wait"


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [({"pending": "Yes"}, "TO-D001", "warning"), ({"mode": "Exclusive_Process"}, "TO-D005", "info")],
)
def test_what_is_wrong_with_a_gpu_is_found_in_the_text(
    change: dict[str, str], rule: str, severity: str, tmp_path: Path
) -> None:
    checkup = check_files(saved(tmp_path, smi=smi_text({}, change)))
    assert rule in {finding.rule for finding in checkup.findings if finding.severity == severity}


def test_what_the_files_do_not_hold_is_not_called_well(tmp_path: Path) -> None:
    checkup = check_files(saved(tmp_path, smi=smi_text({}, {})))
    states = {check.rule: check.status for check in checkup.checks}
    unknown = {"TO-D002", "TO-D009", "TO-D101", "TO-D103", "TO-D105", "TO-D305", "TO-D601"}
    assert {states[rule] for rule in unknown} == {"not_evaluated"}
    assert {states[rule] for rule in ("TO-D003", "TO-D005", "TO-D102", "TO-D104")} == {"clear"}
    alone = check_files(saved(tmp_path, dmesg=XID))
    states = {check.rule: check.status for check in alone.checks}
    assert {states[rule] for rule in ("TO-D001", "TO-D003", "TO-D102", "TO-D104")} == {"not_evaluated"}


def test_programs_on_the_gpus_may_be_the_jobs_own(tmp_path: Path) -> None:
    xml = HEALTHY.replace("<used>0 MiB", "<used>90000 MiB")
    assert "TO-D009" not in {finding.rule for finding in check_files(saved(tmp_path, smi=xml)).findings}


def test_files_of_several_programs_are_of_one_host(tmp_path: Path) -> None:
    paths = saved(tmp_path, smi=smi_text({}, {}), dmesg=XID)
    [host], used, problems = read_outputs(paths)
    assert used == frozenset(paths) and not problems
    looks = judge_outputs(host)
    assert one(looks, "Xid 79").found.startswith("GPU1: ")


def test_the_same_programs_output_twice_is_of_two_hosts(tmp_path: Path) -> None:
    for name in ("node0", "node1"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, smi=smi_text({}), dmesg=XID)
    assert [host.name for host in read_outputs(sorted(tmp_path.rglob("*.txt")))[0]] == ["node0", "node1"]
    flat = saved(tmp_path, one=smi_text({}), two=smi_text({"mode": "Prohibited"}))
    assert [host.name for host in read_outputs(flat)[0]] == ["one.txt", "two.txt"]
    assert "on two.txt" in next(one for one in check_files(flat).findings if one.rule == "TO-D005").message


def test_links_that_are_down_are_found_without_nvidia_smi_q(tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, nvlink=LINKS)).looks
    down = one(looks, "NVLink of GPU1")
    assert (down.found, down.level) == ("1 of 2 links up", "warning")
    assert down.advice.endswith("CUDA_VISIBLE_DEVICES=0,2")


def test_gpus_that_a_paste_of_links_lacks_are_not_called_without_links(tmp_path: Path) -> None:
    same = LINKS.replace("Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3")
    for index, bus in enumerate(("19", "3B", "5D")):
        same = same.replace(f"UUID: GPU-{index})", f"UUID: GPU-{bus})")
    looks = check_files(saved(tmp_path, smi=smi_text({}, {}, {}, {}), nvlink=same)).looks
    assert [look.what for look in looks if look.rule == "TO-D101" and look.level == "warning"] == ["NVLink of GPU1"]
    assert not [look for look in looks if look.level == "error"]


def test_a_matrix_of_direct_access(tmp_path: Path) -> None:
    [look] = [one for one in check_files(saved(tmp_path, p2p=P2P)).looks if one.rule == "TO-D103"]
    assert (look.level, look.found) == ("note", "not on these GPUs")
    other = saved(tmp_path, nvlink_access=f"$ nvidia-smi topo -p2p n\n{P2P}")
    assert not read_outputs(other)[0]


def test_a_part_of_the_output_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    whole = smi_text({}, {})
    cut = whole[: whole.rindex("    Clocks\n")]
    [(path, problem)] = check_files(saved(tmp_path, cut=cut)).problems
    assert path.endswith("cut.txt") and problem == f"{NOT_WHOLE}: 1 of 2 GPUs are whole"
    part = HEAD.format(count=1) + "GPU 00000000:19:00.0\n    Max Clocks\n        SM    : 1980 MHz\n"
    with pytest.raises(InputError, match="give the whole output"):
        check_files(saved(tmp_path, part=part))
    with pytest.raises(InputError, match="give the whole output"):
        check_files(saved(tmp_path, xml=HEALTHY[: len(HEALTHY) // 2]))


def test_a_bug_report_holds_all_of_it_and_its_log_several_times(tmp_path: Path) -> None:
    rule = "_" * 44
    parts = ("Start of NVIDIA bug report log file.", smi_text({}, {}), f"*** dmesg\n{XID}", f"*** journal\nhost {XID}")
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(f"\n{rule}\n\n".join(parts).encode()))
    looks = check_files([path]).looks
    assert one(looks, "Xid 79").facts["count"] == 1
    assert one(looks, "GPUs").found == "2 × NVIDIA H100 80GB HBM3, 80 GiB"


def test_a_log_from_the_boot_on_without_xids(tmp_path: Path) -> None:
    text = "[    0.000000] Linux version 6.1.0 (gcc)\n[    9.1] nvidia: loading out-of-tree module\n"
    looks = check_files(saved(tmp_path, dmesg=text)).looks
    assert one(looks, "Xid errors").found == "none in this log"
    with pytest.raises(InputError):
        check_files(saved(tmp_path, notes="[    9.1] nvidia: loading out-of-tree module\n"))


def test_lines_without_end_are_read_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """A pattern that tries every end of a label took minutes for one line of spaces."""
    odd = "    a" + " " * 300_000 + "b"
    whole = smi_text({}).replace("    Clocks\n", f"{odd}\n    Clocks\n")
    smi = parse_smi(whole)
    assert smi is not None and len(smi.gpus) == 1 and smi.gpus[0].clock == 86
    deep = HEAD.format(count=1) + "GPU 00000000:19:00.0\n" + "".join(f"{' ' * at}a\n" for at in range(4, 4000, 4))
    assert not read_outputs(saved(tmp_path, deep=deep))[0]


def test_each_output_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were parsed when they were found, when files were held to each other, and when they were judged."""
    check_files(saved(tmp_path, smi=smi_text({}, {}), dmesg=XID))  # what is imported late is imported
    parsers = (parse_smi, parse_nvlink_status, p2p_matrices, tables, lists_of_gpus, parse_environment, parse_xids)
    calls: Counter[tuple[str, str]] = Counter()

    def counted(parser: Callable[[str], Any]) -> Callable[[str], Any]:
        def parse(text: str) -> Any:
            calls[parser.__name__, text] += 1
            return parser(text)

        return parse

    for parser in parsers:
        for module in list(sys.modules.values()):
            if getattr(module, parser.__name__, None) is parser and module is not sys.modules[__name__]:
                monkeypatch.setattr(module, parser.__name__, counted(parser))
    topology = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV18\t0-47\nGPU1\tNV18\tX\t0-47\n"
    files = saved(tmp_path, smi=smi_text({}, {}), dmesg=XID, nvlink=LINKS, p2p=P2P, topo=topology)
    assert check_files(files).looks
    assert {name for name, _ in calls} >= {"parse_smi", "parse_nvlink_status", "p2p_matrices", "parse_xids"}
    assert max(calls.values()) == 1
