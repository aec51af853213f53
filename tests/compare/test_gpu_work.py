"""GPU time compared by module and operator, also between GPUs of different kinds that do the same work."""

import msgspec
import pytest
from comparison_reports import made

from traceops.compare.changes import find_changes
from traceops.compare.comparable import refusals
from traceops.report.inventory import ComputeRows, OperatorRow


def row(name, ms, *, module="", phase="forward", flops=1e12, calls=4.0):
    return OperatorRow(
        name=name, kind="product", shape="8192×4096 4096×4096", calls=calls, ms=ms, flops=flops, bytes=1e9,
        attainable_ms=ms / 2, cause=None, known_ms=ms, phase=phase, module=module,
    )  # fmt: skip


def with_work(capture, *rows):
    busy = sum(one.ms for one in rows)
    compute = ComputeRows(
        rank=0, busy_ms=busy, attainable_ms=busy / 2, efficiency_pct=50.0, rates="measured", bound="device", losses=(),
        operators=rows,
    )  # fmt: skip
    return msgspec.structs.replace(capture, report=msgspec.structs.replace(capture.report, compute=compute))


SAME = {"inventory": {"kernels": [{"name": "k", "kind": "compute", "count_per_step": 1.0, "ms_per_step": 1.0}]}}


def test_gpu_time_changes_by_module_and_by_operator():
    base = with_work(
        made(**SAME), row("mm", 10.0, module="GPT/Block"), row("softmax", 3.0, module="GPT/Block/Attention")
    )
    head = with_work(
        made(at=1, **SAME), row("mm", 10.0, module="GPT/Block"), row("softmax", 9.0, module="GPT/Block/Attention")
    )
    found = {(change.kind, change.name): change for change in find_changes([base], [head], 50.0)}
    assert set(found) == {("module", "GPT/Block/Attention (forward)"), ("gpu_operator", "softmax")}
    assert found["gpu_operator", "softmax"].more_ms == pytest.approx(6.0)


def test_gpus_of_two_kinds_compare_where_they_do_the_same_work():
    base = with_work(made(), row("mm", 10.0))
    head = with_work(made(at=1, device="AMD Instinct MI300X"), row("mm", 7.0))
    other = with_work(made(at=1, device="AMD Instinct MI300X"), row("mm", 7.0, flops=2e12))
    assert refusals([base], [head]) == []
    assert refusals([base], [other]) == ["device: base NVIDIA H200, head AMD Instinct MI300X"]
    assert refusals([base], [made(at=1, device="AMD Instinct MI300X")])
