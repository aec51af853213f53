"""What nvidia-smi prints without options, nvidia-smi -L and torch's collect_env, as people paste them."""

from __future__ import annotations

from pathlib import Path

import pytest
from looks_help import DATA, one, wrong
from saved_help import HEAD as NVSMI
from saved_help import saved, smi_text

from traceops.core.errors import InputError
from traceops.doctor.checkup import check_files
from traceops.doctor.model import Checkup
from traceops.machine.saved_programs import ONLY_TROUBLE, SEVERAL_LISTS, SEVERAL_TABLES, parse_environment
from traceops.machine.smi_table import lists_of_gpus, lost_gpus, of_one_machine, tables, the_same_gpus

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
