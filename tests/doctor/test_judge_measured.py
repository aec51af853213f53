"""TO-C001 and TO-C002 from bandwidths measured on a machine at rest."""

import pytest

from traceops.doctor.conclusions import judge_measured
from traceops.fabric.model import Gpu, Machine, Measured, Path

NVLINKS = {(f"GPU{a}", f"GPU{b}"): Path("NV", 18) for b in range(4) for a in range(b)}
H200 = Machine("a", tuple(Gpu(i, "NVIDIA H200") for i in range(4)), paths=NVLINKS)
L4 = Machine("a", tuple(Gpu(i, "NVIDIA L4") for i in range(4)))


def all_reduce(gbs, gpus=(0, 1, 2, 3), size=1 << 28, **fields):
    return Measured("all_reduce", gpus, size, 1.0, gbs, "a", **fields)


def pairs(gbs):
    return [Measured("send_recv", pair, 1 << 26, 1.0, value, "a") for pair, value in gbs.items()]


def judged(measured, machines=(H200,), before=None):
    return {verdict.rule: verdict for verdict in judge_measured(measured, machines, before)}


@pytest.mark.parametrize(
    ("gbs", "severity"), [(335.0, None), (180.0, None), (150.0, "warning"), (25.0, "error"), (3.2, "error")]
)
def test_against_the_nvlink_of_the_gpu(gbs, severity):
    found = judged([all_reduce(gbs)])["TO-C001"].findings
    assert [f.severity for f in found] == ([severity] if severity else [])


def test_the_largest_message_of_the_most_gpus_counts():
    rows = [all_reduce(335.0), all_reduce(20.0, (0, 1)), all_reduce(2.0, size=1 << 16)]
    assert judged(rows)["TO-C001"].clear
    assert "no all-reduce" in judged([])["TO-C001"].not_evaluated


def test_against_what_this_machine_gave_before():
    assert judged([all_reduce(19.0)], (L4,), all_reduce(20.0))["TO-C001"].clear
    found = judged([all_reduce(9.0)], (L4,), all_reduce(20.0))["TO-C001"].findings
    assert [f.severity for f in found] == ["warning"]
    assert "45 % of the 20 GB/s that this machine gave before" in found[0].message
    assert "a gives 9 GB/s" in judged([all_reduce(9.0)], (L4,))["TO-C001"].not_evaluated
    other = Measured("all_reduce", (0, 1, 2, 3), 1 << 28, 1.0, 20.0, "b")
    assert judged([all_reduce(9.0)], (L4,), other)["TO-C001"].not_evaluated


def test_the_gpu_that_all_slow_pairs_share_is_named():
    gbs = {(a, b): 40.0 if 2 in (a, b) else 380.0 for a in range(4) for b in range(4) if a != b}
    found = judged(pairs(gbs))["TO-C002"].findings
    assert len(found) == 1
    assert "GPU2 is in all of them" in found[0].message
    assert "3 of 6 pairs" in found[0].message


def test_equal_pairs_are_clear_and_two_gpus_are_too_few_to_compare():
    assert judged(pairs({(0, 1): 380.0, (1, 0): 370.0, (1, 2): 375.0, (0, 2): 360.0}))["TO-C002"].clear
    assert judged(pairs({(0, 1): 380.0, (1, 0): 37.0}))["TO-C002"].not_evaluated


def test_pairs_across_nodes_are_compared_with_their_like():
    near = {(0, 1): 24.0, (1, 0): 24.0, (2, 3): 24.0, (3, 2): 24.0}
    far = {(a, b): 9.0 for a in (0, 1) for b in (2, 3)}
    paths = {
        (f"GPU{a}", f"GPU{b}"): Path("PIX" if (a, b) in near else "SYS") for a in range(4) for b in range(4) if a < b
    }
    host = Machine("a", L4.gpus, paths=paths)
    assert judged(pairs(near | far), (host,))["TO-C002"].clear
    assert judged(pairs(near | {**far, (0, 2): 3.0}), (host,))["TO-C002"].findings
