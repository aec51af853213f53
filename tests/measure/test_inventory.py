"""What runs in a step: kernels and operators counted, their operations, and the bars that show them."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from events_builder import build, call, kernel, note, step
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traceops.core.text import short_name
from traceops.measure import detail
from traceops.measure.activity import COMM, find_activity
from traceops.measure.detail import MOST_BARS, measure_detail, unpack_detail
from traceops.measure.flops import DEVICES, measure_flops, peak_of, precision_of
from traceops.measure.host_rows import distinct, groups
from traceops.measure.inventory import measure_inventory
from traceops.measure.steps import find_steps
from traceops.measure.summary import RankSummary, summarize
from traceops.pipeline.analyze import analyze
from traceops.pipeline.assemble_tables import flops_of
from traceops.render.report.terms import speed_text
from traceops.report.rows import Run
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace

DATA = Path(__file__).parents[1] / "data"


def measured(rows):
    events = build(rows)
    activity = find_activity(events)
    return measure_inventory(events, activity, find_steps(events, activity))


def two_steps():
    rows = []
    for number, begin in enumerate((0, 10_000)):
        rows += [
            step(number, begin, 9_000),
            note("aten::mm", begin + 100, 400, cat="cpu_op"),
            *kernel(begin + 300, 1000, begin + 200, "gemm"),
            *kernel(begin + 1300, 1000, begin + 300, "gemm"),
            note("aten::add", begin + 600, 100, cat="cpu_op"),
            *kernel(begin + 2400, 500, begin + 650, "add"),
            *kernel(begin + 3000, 100, begin + 800, "ncclDevKernel_AllReduce", correlation=begin + 9999),
            call("cudaStreamSynchronize", begin + 5000, 50),
        ]
    return rows


def test_kernels_belong_to_the_operator_that_launched_them():
    found = {use.name: use for use in measured(two_steps()).kernels}
    assert set(found) == {"gemm", "add"}  # communication is counted with the collectives
    assert (found["gemm"].operator, found["gemm"].count, found["gemm"].device_ns) == ("aten::mm", 4, 4000)
    assert (found["add"].operator, found["add"].count) == ("aten::add", 2)
    assert found["gemm"].place < found["add"].place == 1.0


def test_operators_have_own_host_time_and_the_device_time_of_their_kernels():
    found = {use.name: use for use in measured(two_steps()).operators}
    assert (found["aten::mm"].count, found["aten::mm"].host_ns, found["aten::mm"].device_ns) == (2, 800, 4000)


def test_counts_a_step():
    inventory = measured(two_steps())
    assert inventory.step_kernels.tolist() == [3, 3]
    assert inventory.step_collectives.tolist() == [1, 1]
    assert inventory.step_blocking.tolist() == [1, 1]
    assert inventory.step_bytes.tolist() == [-1, -1]  # nothing says how large it was


@pytest.mark.parametrize("run", ["ddp4", "fsdp2_4", "hta/cpu_only", "hta/amd"])
def test_nothing_is_lost_or_counted_twice_on_real_traces(run):
    for path in sorted((DATA / run).glob("*.json.gz")):
        events = load_trace(str(path)).events
        activity = find_activity(events)
        steps = find_steps(events, activity)
        inventory = measure_inventory(events, activity, steps)
        inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
        assert inventory.step_kernels.sum() == (inside & (activity.kind != COMM)).sum()
        assert inventory.step_collectives.sum() == (inside & (activity.kind == COMM)).sum()
        assert sum(use.count for use in inventory.kernels) == inventory.step_kernels.sum()
        assert sum(use.count for use in inventory.collectives) == inventory.step_collectives.sum()
        spent = events.dur[activity.row[inside & (activity.kind != COMM)]].sum()
        assert sum(use.device_ns for use in inventory.kernels) == spent


def test_bytes_and_collectives_of_a_real_run_are_those_that_were_matched():
    report = analyze(DATA / "ddp4")
    rows = report.inventory.collectives
    per_step = sum(row.count_per_step for row in rows)
    assert per_step == pytest.approx(np.mean([row.collectives for row in report.steps]))
    moved = sum(row.bytes * row.count_per_step for row in rows)
    assert moved == pytest.approx(np.mean([row.collective_bytes for row in report.steps]), rel=1e-3)
    assert all(0 <= row.place <= 1 for row in report.inventory.kernels)
    assert any(row.shapes.startswith("[[") for row in report.inventory.operators)


# Operations of a step, counted from shapes, against the formula of a transformer and torch's own counter.


FLOPS = Path(__file__).parents[1] / "data" / "flops"
TOKENS, LENGTH, DIM, VOCAB = 8 * 512, 512, 1024, 8192


def summary_of(path: Path) -> RankSummary:
    return summarize(discover(str(path)).windows[-1].files[0])


def transformer(layers: int) -> float:
    """6 N T and attention: what a GPT of the recorded runs takes a step, of one rank."""
    weights = layers * 12 * DIM**2 + DIM * VOCAB
    return 6 * weights * TOKENS + 12 * layers * TOKENS * LENGTH * DIM


@pytest.mark.parametrize(("run", "layers"), [("ddp_h200", 8), ("compile_h200", 8), ("fsdp2_h200", 24)])
def test_recorded_steps_of_h200s_are_the_formula_to_the_last_operation(run: str, layers: int) -> None:
    flops = summary_of(FLOPS / f"{run}.pt.trace.json.gz").flops
    assert flops.model == transformer(layers)
    assert (flops.recomputed, flops.precision, flops.why) == (0.0, "bf16", None)


def test_an_operator_whose_launch_begins_a_step_counts_in_it() -> None:
    events = load_trace(str(FLOPS / "ddp_h200.pt.trace.json.gz")).events
    activity = find_activity(events)
    steps, product = find_steps(events, activity), events.names.index("aten::addmm")
    first = [events.ts[(events.name == product) & (events.ts >= begin)].min() + 1 for begin in steps.host_start]
    steps = replace(steps, host_start=np.array(first))
    assert measure_flops(events, activity, steps).model == transformer(8)


def test_a_step_without_its_shapes_or_its_operators_is_not_known(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress((FLOPS / "ddp_h200.pt.trace.json.gz").read_bytes()))
    events = trace["traceEvents"]

    def counted(kept: list[dict[str, Any]]) -> Any:
        path = tmp_path / "rank_0.pt.trace.json"
        path.write_text(json.dumps({**trace, "traceEvents": kept}))
        return summary_of(path).flops

    bare = [{**event, "args": {k: v for k, v in event["args"].items() if k != "Input Dims"}} for event in events]
    assert (counted(bare).model, counted(bare).why) == (None, "no_shapes")
    one = next(place for place, event in enumerate(events) if event["name"] == "aten::addmm")
    assert counted([*events[:one], bare[one], *events[one + 1 :]]).why == "unknown_shape"
    odd = {**events[one], "args": {"Input Dims": [[], [1e308, -1], "x"]}}
    assert counted([*events[:one], odd, *events[one + 1 :]]).why == "unknown_shape"
    attention = [e for e in events if "attention" not in e["name"]]
    assert counted(attention).why == "uncounted"  # its kernels are launched by nothing that is counted
    assert counted([e for e in events if not e["name"].startswith("aten::")]).why == "no_products"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_cpu_trace_has_what_the_formula_and_torchs_counter_say(tmp_path: Path, checkpointing: bool) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from traceops.train.config import Sizes
    from traceops.train.model import GPT

    sizes = Sizes(layers=2, dim=32, heads=2, vocab=64, seq_len=16, batch_size=3, workers=0, bucket_mb=1.0)
    model = GPT(sizes, checkpointing)
    tokens, targets = torch.randint(64, (2, 3, 16))
    path = tmp_path / "rank_0.pt.trace.json"
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(
        record_shapes=True, schedule=schedule, on_trace_ready=lambda prof: prof.export_chrome_trace(str(path))
    ) as prof:
        for _ in range(3):
            model(tokens, targets).backward()
            prof.step()
    flops = summary_of(path).flops
    told = model.flops_per_token(16) * tokens.numel()
    assert flops.model == told
    # Of attention on a CPU torch counts nothing, so it has to count the two products that it is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, targets).backward()
    # Checkpointing leaves off before a block's last product is computed again; its operator is recorded all the same.
    left_off = 2 * 2 * 4 * 32**2 * tokens.numel() if checkpointing else 0
    assert counter.get_total_flops() == told + flops.recomputed - left_off
    blocks = 2 * 2 * 12 * 32**2 * tokens.numel() + 2 * 4 * 3 * 16**2 * 32  # all but the head, which is not repeated
    assert flops.recomputed == (blocks if checkpointing else 0.0)


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "bf16"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "fp16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x16", "tf32"),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "fp32"),
        ("void gemmSN_NN_kernel<double>", None),
    ],
)
def test_precision_is_told_by_names_or_not_at_all(kernel: str, precision: str | None) -> None:
    assert precision_of(kernel) == precision


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA H800", "bf16", 989.4),
        ("NVIDIA H800", "fp8", None),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA A800-SXM4-80GB", "tf32", None),
        ("NVIDIA GB200", "tf32", 1250),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L4", "bf16", 121),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA H200", None, None),
        (None, "bf16", None),
    ],
)
def test_peaks(device: str | None, precision: Any, tflops: float | None) -> None:
    found = peak_of(device, precision)
    assert (None if found is None else found[0]) == tflops
    assert found is None or found[1]


def test_every_peak_has_a_source_and_is_dense() -> None:
    for device in DEVICES:
        assert device.source and set(device.tflops) <= {"fp8", "bf16", "fp16", "tf32", "fp32", "fp64"}
        known = [device.tflops[p] for p in ("fp8", "fp16", "tf32", "fp32") if p in device.tflops]
        assert known == sorted(known, reverse=True)


def test_mfu_is_of_the_step_and_the_average_device() -> None:
    counted = [summary_of(FLOPS / "ddp_h200.pt.trace.json.gz").flops]
    flops = flops_of(Run(world_size=4), counted, "NVIDIA H200", 18.303)
    assert flops.per_step == 4 * transformer(8) and flops.counted_from == "shapes"
    assert flops.tflops_per_s == pytest.approx(transformer(8) / 18.303e-3 / 1e12, rel=1e-4)
    assert flops.mfu_pct == pytest.approx(15.94, abs=0.01)
    told = flops_of(Run(world_size=4, flops_per_step=8e12), [], "NVIDIA H200", 10.0)
    assert (told.counted_from, told.tflops_per_s, told.mfu_pct) == ("training", 200.0, None)
    bf16 = Run(world_size=4, flops_per_step=8e12, training={"config": {"precision": "bf16"}})
    assert flops_of(bf16, [], "NVIDIA H200", 10.0).mfu_pct == pytest.approx(20.21, abs=0.01)
    assert flops_of(Run(world_size=4), [], "NVIDIA H200", 10.0).mfu_pct is None
    slow = flops_of(Run(world_size=1), counted, "NVIDIA H200", 40_000.0)
    summary = SimpleNamespace(samples_per_s=None, tokens_per_s=None, plain_ms=None, flops=slow)
    assert "MFU 0.00729 % as recorded" in speed_text(SimpleNamespace(summary=summary))  # type: ignore[arg-type]


def test_without_the_kernels_no_rate_is_made_of_the_hosts_time(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress((FLOPS / "ddp_h200.pt.trace.json.gz").read_bytes()))
    hosts = [event for event in trace["traceEvents"] if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset")]
    (tmp_path / "rank_0.pt.trace.json").write_text(json.dumps({**trace, "traceEvents": hosts}))
    flops = analyze(tmp_path, cache=False, jobs=1).summary.flops
    assert flops is not None and flops.per_step is not None
    assert (flops.tflops_per_s, flops.mfu_pct) == (None, None)


# The bars of a rank's steps are its trace's events, and files of others cannot make them anything else.


@pytest.mark.parametrize("name", ["slow_loader4", "straggler_gloo2"])
def test_its_bars_are_the_events_of_the_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = discover(str(DATA / name)).windows[-1].files[0]
    events = load_trace(file.path).events
    activity = find_activity(events)
    steps = find_steps(events, activity, file.steps)
    whole = measure_detail(events, activity, steps)
    names, found = unpack_detail(whole)
    assert sorted(found) == list(range(len(steps)))
    assert sum(len(row.bars) for rows in found.values() for row in rows) <= MOST_BARS
    known = {
        (int(ts), int(ts + dur), short_name(events.names[name], 120))
        for ts, dur, name in zip(events.ts, events.dur, events.name, strict=True)
    }
    exact = 0
    for rows in found.values():
        for row in rows:
            for start, end, place, count in zip(
                row.bars.start.tolist(),
                row.bars.end.tolist(),
                row.bars.name.tolist(),
                row.bars.count.tolist(),
                strict=True,
            ):
                if count == 1:
                    exact += 1
                    assert (start, end, names[place]) in known
    assert exact > 500
    own = activity.kind != COMM
    inside = (activity.start[own] >= steps.edges[0]) & (activity.start[own] < steps.edges[-1])
    drawn = sum(int(row.bars.count.sum()) for rows in found.values() for row in rows if row.of == "stream")
    if activity.on_gpu:
        assert drawn == int(inside.sum()), "every kernel that begins in a step is in it once"
    else:
        assert drawn == 0
    monkeypatch.setattr("traceops.measure.detail._MOST_A_STEP", 100)
    smaller = measure_detail(events, activity, steps)
    assert len(smaller) < len(whole) / 3
    counted = {step: sum(int(row.bars.count.sum()) for row in rows) for step, rows in unpack_detail(smaller)[1].items()}
    assert counted == {step: sum(int(row.bars.count.sum()) for row in rows) for step, rows in found.items()}


def test_bytes_of_others_are_refused() -> None:
    file = discover(str(DATA / "straggler_gloo2")).windows[-1].files[0]
    events = load_trace(file.path).events
    activity = find_activity(events)
    good = measure_detail(events, activity, find_steps(events, activity, file.steps))
    names, rows, columns = msgspec.msgpack.decode(zlib.decompress(good))
    for bad in (
        good[:-20],
        b"x" * 40,
        zlib.compress(b"\xc0"),
        zlib.compress(msgspec.msgpack.encode([names[:1], rows, columns])),
        zlib.compress(msgspec.msgpack.encode([names, rows[1:], columns])),
        zlib.compress(msgspec.msgpack.encode([names, [], b"x" * 8_000_000])),
    ):
        with pytest.raises(ValueError):
            unpack_detail(bad)
    assert unpack_detail(b"") == ((), {})


def test_reports_with_bars_are_compared() -> None:
    first, again = (analyze(str(DATA / "slow_loader4"), cache=False, jobs=1) for _ in range(2))
    assert first == again
    assert first != analyze(str(DATA / "ddp4"), cache=False, jobs=1)


def test_rows_of_each_value_come_in_their_order() -> None:
    """A loop over the values of a trace with as many threads as events took minutes for megabytes."""
    values, rows = np.array([7, -1, 7, 3, -1]), np.array([10, 11, 12, 13, 14])
    found = {value: own.tolist() for value, own in detail._by_value(values, rows)}
    assert found == {-1: [11, 14], 3: [13], 7: [10, 12]}
    assert list(detail._by_value(values[:0], rows[:0])) == []


# Groups against NumPy's own, for values close together and far apart.


VALUES = st.lists(st.integers(-1, 6), min_size=1, max_size=40)


@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=10), st.data())
def test_distinct_values_are_found_whether_they_stand_together_or_not(pool, data):
    values = np.array(data.draw(st.lists(st.sampled_from(pool), max_size=40)) if pool else [], dtype=np.int64)
    found, which = distinct(values)
    assert found.tolist() == sorted(set(values.tolist()))
    assert found[which].tolist() == values.tolist()


@pytest.mark.parametrize("apart", [1, 100_000])
@given(VALUES, st.data())
def test_groups_are_the_different_rows_in_order(apart, first, data):
    second = data.draw(st.lists(st.integers(-1, 3), min_size=len(first), max_size=len(first)))
    columns = (np.array(first, dtype=np.int32), np.array([value * apart if value > 0 else value for value in second]))
    values, group = groups(*columns)
    expected = sorted(set(zip(*(column.tolist() for column in columns), strict=True)))
    assert [tuple(row) for row in values.tolist()] == expected
    assert values[group].tolist() == np.stack(columns, axis=1).tolist()
