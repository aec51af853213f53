"""Saved files of several machines, of several times, and of hosts in trouble: nothing is said across machines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from looks_help import one, wrong
from saved_help import LINKS, P2P, XID, saved, smi_text

from traceops.core.errors import InputError
from traceops.doctor.checkup import check_files
from traceops.machine.saved import CUT_OFF, read_outputs
from traceops.machine.saved_programs import SEVERAL_LINKS, SEVERAL_P2P
from traceops.machine.xids import parse_failures, parse_xids

PROHIBITED = {"mode": "Prohibited"}
MATRIX = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tNV18\t0-63\t0
GPU1\tNV18\t X \tNV18\tNV18\t0-63\t0
GPU2\tNV18\tNV18\t X \tNV18\t0-63\t0
GPU3\tNV18\tNV18\tNV18\t X \t0-63\t0
"""
FAILED = (
    "[   12.1] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:1860)\n"
    "[   12.1] NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0\n"
)
BOOT = "[    0.000000] Linux version 6.1.0 (gcc)\n"


def refused(count: int) -> str:
    labels = [f"GPU{index}" for index in range(count)]
    rows = ("\t".join([label, *("X" if label == other else "CNS" for other in labels)]) + "\n" for label in labels)
    return "\t" + "\t".join(labels) + "\n" + "".join(rows)


def by_host(*texts: str) -> str:
    return "".join(f"node{at}: {line}\n" for at, text in enumerate(texts) for line in text.splitlines())


def test_a_topology_of_another_machine_says_nothing_of_this_one(tmp_path: Path) -> None:
    """Four GPUs joined by NVLink beside the access matrix of eight: 'NVLink joins them and the driver refuses'."""
    checkup = check_files(saved(tmp_path, topo=MATRIX, p2p=refused(8)))
    files = one(checkup.looks, "files")
    assert (files.level, files.found) == ("warning", "p2p.txt has 8 GPUs, topo.txt has 4 GPUs")
    assert one(checkup.looks, "direct access (P2P)").level == "note"
    same = check_files(saved(tmp_path, topo=MATRIX, p2p=refused(4)))
    assert one(same.looks, "direct access (P2P)").why == "NVLink joins them and the driver refuses to use it"


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ({"links": LINKS}, "GPU0 of links.txt is of another model than in smi.txt"),
        ({"p2p": refused(8)}, "p2p.txt has 8 GPUs, smi.txt has 2 GPUs"),
        ({"topo": MATRIX}, "smi.txt has 2 GPUs, topo.txt has 4 GPUs"),
        (
            {"links": LINKS.replace("Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3")},
            "GPU0 of links.txt has another UUID than in smi.txt",
        ),
    ],
)
def test_gpus_that_differ_are_told_and_judged_apart(others: dict[str, str], found: str, tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, smi=smi_text({}, PROHIBITED), **others)).looks
    assert one(looks, "files").found == found
    assert one(looks, "compute mode").level == "error"


def test_hosts_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    """Of several reports in one file only the last was judged, and called sound."""
    sick, well = smi_text({}, PROHIBITED), smi_text({}, {})
    ruled = "".join(f"-----\nnode{at}\n-----\n{text}" for at, text in enumerate((sick, well)))
    said = "".join(f"node{at} | CHANGED | rc=0 >>\n{text}" for at, text in enumerate((sick, well)))
    for text in (by_host(sick, well), ruled, said):
        hosts, _, problems = read_outputs(saved(tmp_path, all=text))
        assert [host.name for host in hosts] == ["node0", "node1"] and not problems
        looks = check_files(saved(tmp_path, all=text)).looks
        assert [look.host for look in looks if look.what == "compute mode"] == ["node0"]
    other = well.replace("GPU-19", "GPU-119").replace("GPU-3B", "GPU-13B")
    hosts, _, _ = read_outputs(saved(tmp_path, all=sick + other))
    assert [host.name for host in hosts] == ["all.txt (1)", "all.txt (2)"]
    [again], _, _ = read_outputs(saved(tmp_path, all=sick + well))
    assert again.name == "all.txt"  # the same GPUs, later


def test_hosts_that_several_files_name(tmp_path: Path) -> None:
    """Each file has both hosts; the second host's nvidia-smi is of another time than its matrices."""
    paths = saved(
        tmp_path,
        topo=by_host(MATRIX, MATRIX),
        p2p=by_host(refused(4), refused(4)),
        q=by_host(smi_text({}, {}, {}, {}), smi_text({}, {})),
    )
    looks = check_files(paths).looks
    assert [look.host for look in looks if look.what == "files"] == ["node1 (q.txt)"]
    assert {look.host for look in looks if look.why.startswith("NVLink joins")} == {"node0", "node1"}


def test_logs_of_several_hosts_are_kept_apart(tmp_path: Path) -> None:
    prefixed = by_host(XID, "[ 14.5] NVRM: Xid (PCI:0000:3B:00): 48, pid=1, DBE\n")
    syslog = "Nov 23 13:00:00 a kernel: {}Nov 23 13:00:01 b kernel: {}".format(XID, XID.replace("79,", "48,"))
    for text, names in ((prefixed, ("node0", "node1")), (syslog, ("a", "b"))):
        looks = check_files(saved(tmp_path, log=text)).looks
        assert [(look.host, look.what) for look in looks if look.level == "error"] == [
            (names[0], "Xid 79"), (names[1], "Xid 48"),
        ]  # fmt: skip


def test_a_kernels_log_without_times_is_of_one_host(tmp_path: Path) -> None:
    text = "nvidia: loading\naudit: type=1400\nACPI: ready\n" * 20 + XID[XID.index("NVRM") :]
    assert one(check_files(saved(tmp_path, log=text)).looks, "Xid 79").level == "error"


@pytest.mark.parametrize(
    ("text", "problem"), [(LINKS + LINKS.replace("GPU-", "GPU-9"), SEVERAL_LINKS), (refused(4) + P2P, SEVERAL_P2P)]
)
def test_machines_that_cannot_be_told_apart_are_not_judged(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem[:30]):
        check_files(saved(tmp_path, all=text))


def test_a_bug_report_whose_download_broke_off_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    """It was said to hold nothing; in a folder it was not even opened."""
    filler = "\n".join(f"{(at * 2654435761) ** 3:040x}" for at in range(20_000))
    report = f"Start of NVIDIA bug report log file.\n\n{smi_text({}, {})}\n*** dmesg\n{XID}{filler}"
    packed = gzip.compress(report.encode())
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(packed[: len(packed) // 2])
    checkup = check_files([tmp_path])
    assert one(checkup.looks, "Xid 79").found.startswith("GPU1: ")
    assert [problem for _, problem in checkup.problems] == [CUT_OFF]


def test_a_gpu_that_the_driver_could_not_start_is_no_clean_bill(tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, dmesg=BOOT + FAILED)).looks
    assert one(looks, "driver").found == "0000:3b:00.0: the driver could not start the GPU"
    assert wrong(looks)["driver"] == "error"
    mismatch = "[ 5.0] NVRM: API mismatch: the client has the version 535.54.03, but\n"
    assert wrong(check_files(saved(tmp_path, dmesg=BOOT + mismatch)).looks)["driver"] == "error"
    by_now = check_files(saved(tmp_path, dmesg=BOOT + FAILED + mismatch, smi=smi_text({}, {}))).looks
    assert {look.level for look in by_now if look.what == "driver"} == {"note"}


@pytest.mark.parametrize(
    "said",
    [
        "The NVIDIA probe routine failed for 2 device(s).",
        "None of the NVIDIA devices were initialized.",
        "None of the NVIDIA graphics adapters were initialized!",
        "No NVIDIA devices probed.",
    ],
)
def test_a_driver_that_started_nothing_is_no_clean_bill(said: str, tmp_path: Path) -> None:
    looks = check_files(saved(tmp_path, dmesg=f"{BOOT}[ 19.5] NVRM: {said}\n")).looks
    assert (one(looks, "driver").level, one(looks, "driver").found) == ("error", "the driver could not start GPUs")
    by_now = saved(tmp_path, dmesg=f"{BOOT}[ 19.5] NVRM: {said}\n", smi=smi_text({}, {}))
    look = one(check_files(by_now).looks, "driver")
    assert (look.level, look.found) == ("note", "the driver could not start GPUs, and lists GPU0, GPU1 by now")


def test_errors_before_the_last_boot_are_of_the_past(tmp_path: Path) -> None:
    text = f"{BOOT}{XID}{FAILED}{BOOT}[    9.1] nvidia: loaded\n"
    looks = check_files(saved(tmp_path, kern=text)).looks
    assert wrong(looks) == {"Xid 79": "note", "driver": "note"}
    assert one(looks, "Xid 79").found.endswith(", before the last boot")
    assert wrong(check_files(saved(tmp_path, kern=text + XID)).looks)["Xid 79"] == "error"


BUG_REPORT = """Start of NVIDIA bug report log file.

____________________________________________

Scanning kernel log files for NVIDIA kernel messages:
  /var/log/kern.log:
{files}
  journalctl -b -0:
{now}
  journalctl -b -1:
{before}
____________________________________________

dmesg:

{now}
"""
ECC = XID.replace("79,", "48,")
LOADED = "[    9.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"


@pytest.mark.parametrize(
    ("logs", "levels"),
    [
        ({"files": XID, "now": LOADED, "before": XID}, {"Xid 79": "note"}),
        ({"files": XID, "now": XID, "before": XID}, {"Xid 79": "error"}),
        ({"files": XID, "now": LOADED, "before": LOADED}, {"Xid 79": "note"}),
        ({"files": "", "now": XID, "before": ECC}, {"Xid 79": "error", "Xid 48": "note"}),
    ],
)
def test_a_bug_report_has_logs_of_three_boots(logs: dict[str, str], levels: dict[str, str], tmp_path: Path) -> None:
    """An Xid before the reboot that cured it was one of today."""
    assert wrong(check_files(saved(tmp_path, report=BUG_REPORT.format(**logs))).looks) == levels


@pytest.mark.parametrize("before", ["If dmesg shows `", "errors such as ", 'grep -c "', "# "])
def test_words_about_an_xid_are_none(before: str) -> None:
    assert not parse_xids(f"{before}{XID[XID.index('NVRM') :]}")
    assert not parse_failures(f"{before}{FAILED[FAILED.index('NVRM') :]}".splitlines()[0])


@pytest.mark.parametrize(
    "before",
    ["", "  ", "[ 12.5] ", "[Mon Jan  1 00:00:02 2024] ", "Nov 23 13:00:00 host kernel: ", "<3>", "3,1,2,-;",
     '{"_HOSTNAME":"a","MESSAGE":"', '"MESSAGE" : "', "kern  :err   : [ 12.5] "],
)  # fmt: skip
def test_an_xid_is_known_however_the_log_was_written(before: str) -> None:
    assert [xid.code for xid in parse_xids(before + XID[XID.index("NVRM") :])] == [79]


def test_gpus_keep_their_numbers_where_one_before_is_not_whole(tmp_path: Path) -> None:
    whole = smi_text({}, PROHIBITED)
    torn = whole.replace("    Max Clocks\n        SM                                : 1980 MHz\n", "", 1)
    assert one(check_files(saved(tmp_path, q=torn)).looks, "compute mode").found.startswith("GPU1: ")


def test_a_gpu_that_was_chosen_keeps_its_number(tmp_path: Path) -> None:
    """`nvidia-smi -q -i 3` has one GPU of eight; it was called GPU0, also in the command that mends it."""
    text = smi_text(PROHIBITED).replace("Attached GPUs                             : 1", "Attached GPUs : 8")
    uuid = "    GPU UUID   "
    checkup = check_files(saved(tmp_path, q=text.replace(uuid, f"    Minor Number : 3\n{uuid}")))
    look = one(checkup.looks, "compute mode")
    assert look.found.startswith("GPU3: ") and "-i 3" in look.advice
    assert checkup.problems[0][1].endswith("1 of 8 GPUs are whole")


def test_lines_of_hosts_in_between_each_other(tmp_path: Path) -> None:
    texts = [smi_text({}, PROHIBITED).splitlines(), smi_text({}, {}).splitlines()]
    lines = [f"node{at}: {line}" for both in zip(*texts, strict=True) for at, line in enumerate(both)]
    looks = check_files(saved(tmp_path, q="\n".join(lines))).looks
    assert [look.host for look in looks if look.what == "compute mode"] == ["node0"]


def test_odd_texts_are_read_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """Blank lines before a UUID, or a line full of GPUs, were read in their length squared."""
    blank = smi_text({}).replace("    GPU UUID", "\n" * 200_000 + "    GPU UUID")
    gpus = "[ 1.0] NVRM: " + "GPU 0000 " * 100_000 + "fallen off the bus\n"
    assert len(read_outputs(saved(tmp_path, q=blank + blank, log=gpus + XID))[0]) == 1
