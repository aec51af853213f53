"""The tables of nccl-tests and rccl-tests in logs: what is read of them, and what the rules say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.cli import main
from traceops.fabric.discover import named_fabric, run_fabric
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Quote
from traceops.fabric.model import Path as Way
from traceops.fabric.nccl import Benchmark, BenchmarkRank, BenchmarkSize
from traceops.fabric.readers.measured import holds_nccl_tests, read_nccl_tests
from traceops.rules.fabric.benchmarks import judge_benchmarks

DATA = Path(__file__).parents[1] / "data" / "nccl_tests"
HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"


def of(name: str) -> list[Benchmark]:
    return list(read_nccl_tests(str(DATA / name)))


def said(*paths: Path) -> dict[str, tuple[list[tuple[str, str]], str, str]]:
    """By rule: severity and facts of its findings, why it was not evaluated, why it is clear."""
    verdicts = judge_benchmarks(named_fabric(paths))
    return {one.rule: ([(f.severity, f.facts) for f in one.findings], one.not_evaluated, one.clear) for one in verdicts}


def test_two_tests_in_one_log_with_their_ranks_and_sizes():
    reduce, gather = of("h100x4.txt")
    assert (reduce.op, gather.op) == ("all_reduce", "all_gather")
    assert (reduce.gpu, reduce.hosts) == ("NVIDIA H100 80GB HBM3", ("node-1",))
    assert [(rank.rank, rank.device, rank.bus_id) for rank in reduce.ranks] == [
        (i, i, f"0000:{0x1B + 0x10 * i:02x}:00.0") for i in range(4)
    ]
    assert [row.bytes for row in reduce.sizes] == [8, 1 << 20, 1 << 26, 1 << 28, 1 << 30]
    assert (reduce.smallest.time_us, reduce.best.bytes, reduce.best.busbw_gbs) == (21.4, 1 << 30, 377.47)
    assert (reduce.wrong, reduce.average_gbs) == (0, 189.1)
    line = (DATA / "h100x4.txt").read_text().splitlines()[reduce.best.quote.line - 1]
    assert reduce.best.quote.text == line.strip()


def test_the_two_of_a_row_that_is_faster_counts_and_wrong_values_of_both_are_added(tmp_path):
    table = tmp_path / "log"
    table.write_text(HEADER + "  67108864  16777216  float  sum  -1  900.0  74.5  111.8  3  450.0  149.1  223.7  4\n")
    [one] = read_nccl_tests(str(table))
    assert [(row.time_us, row.busbw_gbs, row.wrong) for row in one.sizes] == [(450.0, 223.7, 7)]


@pytest.mark.parametrize("number", ["1e999", "inf", "nan"])
def test_a_row_with_a_number_that_is_not_finite_is_left_out(tmp_path, number):
    row = "  67108864  16777216  float  sum  -1  900.0  74.5  111.8  {}\n"
    table = tmp_path / "log"
    table.write_text(HEADER + row.format(0) + row.format(number))
    [one] = read_nccl_tests(str(table))
    assert [line.wrong for line in one.sizes] == [0]


def test_a_prefix_of_mpirun_changes_nothing():
    [one] = of("a100x8_slow_and_wrong.txt")
    assert (one.op, len(one.ranks), one.wrong, one.out_of_bounds) == ("all_reduce", 8, 1536, 1)


def test_old_tables_of_a_size_each_are_one_test_whose_operation_follows_from_its_bandwidths():
    [one] = of("v100x4_old.txt")
    assert (one.op, [row.bytes for row in one.sizes]) == ("all_reduce", [1024, 1 << 20, 1 << 26])
    assert one.wrong is None  # validation: 0
    assert {rank.bus_id for rank in one.ranks} == {f"0000:{0x1B + 0x10 * i:02x}:00.0" for i in range(4)}


def test_rows_that_nccl_broke_into_are_put_together():
    [one] = of("a100x2_with_nccl_lines.txt")
    assert [(row.bytes, row.time_us, row.wrong) for row in one.sizes] == [(1 << 25, 198.0, 0), (1 << 26, 360.0, 0)]


def test_a_time_without_decimals_is_no_root(tmp_path):
    """Before 2.11 there was no such column, and a time of seven digits and more was printed without a point."""
    old, row = (HEADER.replace("  root", "").replace("#wrong", "error"), "  67108864  16777216  float  sum  90472")
    table = tmp_path / "log"
    table.write_text(f"{old}{row}  0.74  1.11  4e-07  90443  0.75  1.12  4e-07\n")
    [one] = read_nccl_tests(str(table))
    assert [(one.time_us, one.busbw_gbs, one.wrong) for one in one.sizes] == [(90443.0, 1.12, None)]


def test_a_table_that_nothing_ends_is_not_gone_on_with(tmp_path):
    row = "  67108864  16777216  float  sum  -1  900.0  74.5  111.8  0  450.0  149.1  223.7  0\n"
    table = tmp_path / "log"
    table.write_text(f"all_reduce_perf\n{HEADER}{row}\nall_reduce_perf\n{HEADER}{row}")
    assert [len(one.sizes) for one in read_nccl_tests(str(table))] == [1, 1]


def test_processes_that_each_ran_alone_are_told_and_not_judged():
    [one] = of("without_mpi.txt")
    assert one.alone == 2
    (findings, why, _), values = (said(DATA / "without_mpi.txt")["TO-P008"], said(DATA / "without_mpi.txt")["TO-P007"])
    assert not findings
    assert "2 processes of one rank" in why
    assert "MPI=1" in why
    assert values[1]


def test_columns_that_rccl_adds_are_passed_over():
    [one] = of("mi300x8_rccl.txt")
    assert (one.gpu, [row.bytes for row in one.sizes]) == ("AMD Instinct MI300X", [1 << 20, 1 << 27])
    assert "not known" in said(DATA / "mi300x8_rccl.txt")["TO-P008"][1]


def test_wrong_values_and_far_too_little_bandwidth_are_findings():
    known = said(DATA / "a100x8_slow_and_wrong.txt")
    [(severity, wrong)] = known["TO-P007"][0]
    assert (severity, wrong["wrong"], wrong["sizes"], wrong["hosts"]) == ("error", 1536, ["1 GiB"], ["node-2"])
    [(severity, slow)] = known["TO-P008"][0]
    assert (severity, slow["message_size"], slow["source"], slow["link"]) == ("warning", "1 GiB", "gives", "NVLink 3")
    assert (slow["gbs"], slow["limit"], slow["pct"]) == (25.65, 230.0, pytest.approx(11.1, abs=0.1))


def test_what_the_links_give_is_clear():
    known = said(DATA / "h100x4.txt")
    assert known["TO-P007"] == ([], "", "2 tests of nccl-tests got right values")
    assert "377 GB/s over 4 GPUs on node-1 (350 GB/s is what NVLink 4 gives)" in known["TO-P008"][2]


def benchmark(op="all_reduce", gbs=20.0, count=2, hosts=("a", "a"), gpu="NVIDIA A100 80GB PCIe", size=1 << 30):
    ranks = tuple(BenchmarkRank(i, hosts[i % len(hosts)], i, gpu, f"0000:{i:02x}:00.0") for i in range(count))
    row = BenchmarkSize(size, 1000.0, gbs, 0, Quote("log", 1, "row"))
    return Benchmark(op, ranks, (row,), row.quote)


BRIDGED = Machine(
    None,
    tuple(Gpu(i, bus_id=f"0000:{i:02x}:00.0", nvlinks=12, nvlink_gbs=25.0) for i in range(2)),
    paths={("GPU0", "GPU1"): Way("NV", 12)},
)


def slow(one: Benchmark, *machines: Machine) -> tuple[list[str], str]:
    verdict = judge_benchmarks(Fabric(machines, benchmarks=(one,)))[1]
    return [found.severity for found in verdict.findings], verdict.not_evaluated


def test_a_topology_tells_what_a_bridge_gives_where_the_name_does_not():
    assert slow(benchmark(gbs=180.0), BRIDGED) == ([], "")
    assert slow(benchmark(gbs=100.0), BRIDGED)[0] == ["warning"]
    assert slow(benchmark(gbs=20.0), BRIDGED)[0] == ["error"]
    assert "not known" in slow(benchmark(gbs=20.0))[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"op": "sendrecv"}, "does not use all links"),
        ({"op": "alltoall"}, "does not use all links"),
        ({"op": None}, "which operation"),
        ({"size": 1 << 20}, "largest message is 1 MiB"),
        ({"count": 1}, "one rank"),
        ({"hosts": ("a", "b")}, "not known"),
    ],
)
def test_what_says_nothing_of_the_links_is_not_judged(change, why):
    findings, said_why = slow(benchmark(**{"gbs": 5.0, **change}), BRIDGED)
    assert not findings
    assert why in said_why


def test_doctor_reads_and_tells_them(tmp_path, capsys):
    code = main(
        ["doctor", "--from", str(DATA / "a100x8_slow_and_wrong.txt"), "-o", str(tmp_path), "--fail-on", "error"]
    )
    out = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "A test of nccl-tests got wrong values" in out
    assert "results of nccl-tests in a100x8_slow_and_wrong.txt" in out
    kept = json.loads((tmp_path / "doctor.json").read_text())["benchmarks"]
    assert [(one["op"], one["ranks"], one["hosts"], one["wrong"]) for one in kept] == [
        ("all_reduce", 8, ["node-2"], 1536)
    ]
    page = (tmp_path / "doctor.html").read_text()
    assert "Results of nccl-tests in the logs" in page


def test_a_clean_result_is_told_with_bandwidth_and_latency(tmp_path, capsys):
    assert main(["doctor", "--from", str(DATA / "h100x4.txt"), "-o", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "all_reduce of nccl-tests over 4 GPUs on node-1: 377 GB/s at 1 GiB, 21.4 µs at 8 B." in out


def test_they_are_found_beside_traces(tmp_path):
    (tmp_path / "all_reduce.log").write_bytes((DATA / "h100x4.txt").read_bytes())
    fabric = run_fabric(str(tmp_path))
    assert fabric is not None
    assert [one.op for one in fabric.benchmarks] == ["all_reduce", "all_gather"]


def test_a_text_that_only_speaks_of_them_holds_none(tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("algbw and busbw by size are what nccl-tests prints\n 8 2 float sum\n")
    assert holds_nccl_tests(str(note))
    assert not read_nccl_tests(str(note))


LINES = "".join(one.read_text() for one in sorted(DATA.glob("*.txt"))).splitlines()


@examples(60)
@given(data=st.data())
def test_whatever_is_cut_out_of_logs_or_mixed_is_read_without_a_failure(data, tmp_path_factory):
    lines = data.draw(st.lists(st.sampled_from(LINES), max_size=60))
    cut = data.draw(st.integers(0, 120))
    text = "\n".join(line[: cut or None] if place % 5 == 0 else line for place, line in enumerate(lines))
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_text(text)
    for one in read_nccl_tests(str(path)):
        assert one.sizes
        assert all(row.bytes >= 0 and row.time_us > 0 for row in one.sizes)
        judge_benchmarks(Fabric(benchmarks=(one,)))


FALLS = [  # alltoall of two H100 on two hosts: xxrjun/nccl-tests-cluster@455de4f, cnode2-002 and cnode2-003
    (33554432, 7.08), (67108864, 7.32), (134217728, 9.40), (268435456, 8.14), (536870912, 9.05), (1073741824, 7.19),
    (2147483648, 4.01), (4294967296, 3.23), (8589934592, 1.71), (17179869184, 0.96),
]  # fmt: skip


def table(rows: list[tuple[int, float]], tag: str = "") -> str:
    ranks = [f"#  Rank  {n} Group  0 Pid 1 on node-{n} device  0 [0x52] NVIDIA H100 80GB HBM3\n" for n in (0, 1)]
    told = [f"{size} {size // 8} double none -1{tag} 10.0 1.0 {gbs} 0{tag} 10.0 1.0 {gbs} N/A\n" for size, gbs in rows]
    return "".join(["# Collective test starting: alltoall_perf\n", *ranks, HEADER, *told])


def test_a_rate_that_falls_as_messages_grow(tmp_path):
    """9.4 GB/s at 128 MiB were told and nothing wrong seen, where 16 GiB went at a tenth of that."""
    log = tmp_path / "nccl.log"
    log.write_text(table(FALLS))
    [(severity, facts)] = said(log)["TO-P008"][0]
    assert (severity, facts["best"], facts["best_size"]) == ("warning", 9.4, "128 MiB")
    assert (facts["last"], facts["last_size"]) == (0.96, "16 GiB")
    for sound in (FALLS[:7], [*FALLS[:5], (1 << 40, 1.0)], [(size, 1.2 * gbs) for size, gbs in FALLS[:3]]):
        log.write_text(table(sound))
        assert said(log)["TO-P008"][0] == []  # half as fast at most, one outlier at the end, and too few


def test_rows_that_open_mpi_tags_in_their_middle(tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text("".join(f"[1,0]<stdout>:{line}\n" for line in table(FALLS, "[1,0]<stdout>:").splitlines()))
    [read] = read_nccl_tests(str(log))
    assert [(row.bytes, row.busbw_gbs) for row in read.sizes] == FALLS and len(read.ranks) == 2


def test_a_rate_that_falls_and_is_far_below_the_links_is_told_as_both(tmp_path):
    """A tenth of what NVLinks give was only a warning where larger messages were slower still."""
    ranks = "".join(f"#  Rank  {n} Pid 1 on node-0 device  {n} [0x52] NVIDIA H100 80GB HBM3\n" for n in (0, 1))
    rows = [(1 << 25, 20.0), (1 << 27, 19.0), (1 << 29, 9.0), (1 << 31, 5.0)]
    told = "".join(f"{size} {size // 4} float sum -1 10.0 1.0 {gbs} 0 10.0 1.0 {gbs} 0\n" for size, gbs in rows)
    log = tmp_path / "nccl.log"
    log.write_text(f"# Collective test starting: all_reduce_perf\n{ranks}{HEADER}{told}")
    findings = said(log)["TO-P008"][0]
    assert [severity for severity, _ in findings] == ["error", "warning"]
    assert "pct" in findings[0][1] and "last" in findings[1][1]


RANKS = "#  Rank  {r} Group  0 Pid  5 on host{r} device  0 [0000:61:00] NVIDIA L40\n"
ONE_ROW = "   {bytes}   2   float   sum   -1   {us}   0.00   0.00   0   {us}   0.00   0.00   0\n"
TWO_RANKS = RANKS.format(r=0) + RANKS.format(r=1)


def test_a_test_that_failed_before_its_first_row_says_how(tmp_path):
    path = tmp_path / "test.log"
    path.write_text(TWO_RANKS + HEADER + "h: Test NCCL failure all_gather.cu:47 'unhandled system error'\n")
    problems: list[str] = []
    assert read_nccl_tests(str(path), problems) == ()
    assert problems == [
        "a test of nccl-tests began and has no result: it says \"Test NCCL failure all_gather.cu:47 'unhandled system "
        "error'\""
    ]


@pytest.mark.parametrize(("us", "late"), [(9973.4, True), (144.3, False)])
def test_small_messages_that_take_milliseconds(tmp_path, capsys, us, late):
    path = tmp_path / "test.log"
    path.write_text(TWO_RANKS + HEADER + ONE_ROW.format(bytes=8, us=us) + ONE_ROW.format(bytes=256, us=us))
    findings, _, _ = said(path)["TO-P008"]
    assert [severity for severity, _ in findings] == ["warning"] * late
    main(["doctor", "--from", str(path), "-o", str(tmp_path / "out"), "--format", "json"])
    told = " ".join(capsys.readouterr().out.split())
    assert "0 GB/s" not in told
    assert ("takes 9.97 ms for 8 B" in told) is late and ("Nothing wrong" in told) is not late
    assert "no message was large enough for a bandwidth" in told


@pytest.mark.parametrize(
    ("program", "ranks", "late"), [("all_reduce", 32, True), ("alltoall", 32, False), ("alltoall", 16, True)]
)
def test_what_sends_to_each_rank_in_turn_may_take_longer(tmp_path, program, ranks, late):
    path = tmp_path / "test.log"
    row = ONE_ROW.format(bytes=8, us=2300.0)
    began = f"# Collective test starting: {program}_perf\n"
    path.write_text(began + "".join(RANKS.format(r=rank) for rank in range(ranks)) + HEADER + row)
    assert [severity for severity, _ in said(path)["TO-P008"][0]] == ["warning"] * late


def test_a_host_with_nvlink_that_does_not_use_it_is_far_below_its_links():
    """Measured on 2 H200: 313 GB/s as it is, 27 with NCCL_P2P_DISABLE=1, 3 over sockets."""
    for name, fires in (("plain", False), ("no_p2p", True), ("sockets", True)):
        found = said(DATA.parent / "nccl_slow" / f"{name}.txt")["TO-P008"][0]
        assert [severity for severity, _ in found] == ["error"] * fires


def test_a_table_without_its_head_is_read_where_its_end_is_there(tmp_path):
    rows = (
        "  67108864  16777216  float  none  0  9407.6  7.13  7.13  0  9352.9  7.18  7.18  0\n"
        " 134217728  33554432  float  none  0   18781  7.15  7.15  0   18756  7.16  7.16  0\n"
    )
    end = (
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.41227\n# Collective test concluded: broadcast_perf\n"
    )
    path = tmp_path / "log.txt"
    path.write_text(rows + end)
    assert holds_nccl_tests(str(path))
    (benchmark,) = read_nccl_tests(str(path))
    assert (benchmark.op, benchmark.ranks, benchmark.average_gbs) == ("broadcast", (), 3.41227)
    assert [(row.bytes, row.busbw_gbs, row.wrong) for row in benchmark.sizes] == [
        (67108864, 7.18, None),
        (134217728, 7.16, None),
    ]
    path.write_text(rows)
    assert not read_nccl_tests(str(path))
    path.write_text(f"{rows}{HEADER}{rows}{end}")
    (benchmark,) = read_nccl_tests(str(path))
    assert len(benchmark.sizes) == 2
