"""Machines of strangers: a card beside faster ones, and links that are narrower one way."""

from __future__ import annotations

import pytest
from changed import replace

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Nic, Path
from traceops.fabric.read import read_fabric
from traceops.render.topology.shape import shape_of
from traceops.rules.fabric.paths import judge_widths

GPUS = (Gpu(0, name="A100"), Gpu(1, name="A100"))


def machine(*nics: Nic) -> Machine:
    paths = {(gpu.label, nic.label): Path("SYS") for gpu in GPUS for nic in nics}
    return Machine("h", GPUS, nics, paths | {("GPU0", "GPU1"): Path("NV", 12)})


def fast(index: int, card: str, gbs: float) -> Nic:
    return Nic(f"NIC{index}", f"mlx5_{index}", kind="IB", speed_gbs=gbs, bus_id=card)


OTHERS = [fast(i, f"0000:{i}0:00.0", 50.0) for i in (4, 5, 6, 7)]


def test_a_card_all_of_whose_ports_are_slower_is_another_card():
    slow = [fast(i, "0000:01:00.0", 12.5) for i in range(4)]
    assert judge_widths(Fabric((machine(*slow, *OTHERS),))).findings == ()


@pytest.mark.parametrize(
    "slow",
    [
        [fast(0, "0000:01:00.0", 12.5)],  # a card of one port
        [fast(0, "0000:01:00.0", 12.5), fast(1, "0000:01:00.1", 50.0)],  # one port of a card
    ],
)
def test_a_port_that_is_slower_than_its_siblings_is_told(slow):
    (finding,) = judge_widths(Fabric((machine(*slow, *OTHERS),))).findings
    assert "mlx5_0 (100 Gbit/s)" in finding.message


def test_links_that_are_narrower_one_way_are_not_called_alike():
    uneven = replace(machine(), paths={("GPU0", "GPU1"): Path("NV", 12, back_share=1 / 12)})
    hub = shape_of(uneven).hub
    assert hub is not None and hub.texts[0] == "NV12 one way, NV1 back"
    assert shape_of(machine()).hub.texts[0] == "NV12"


TEST = """\
# Collective test starting: {op}_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 36 on n3 device  0 [0000:61:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 35 on n8 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
"""
ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
    33554432       2097152    double    none      -1  1286.53   26.08   13.04       0  1274.91   26.32   13.16    N/A
# Avg bus bandwidth    : 13.1
# Collective test concluded: {op}_perf
"""


def test_a_test_that_began_and_has_no_result_is_told(tmp_path):
    path = tmp_path / "tests.log"
    whole = (TEST + ROWS).format(op="alltoall")
    path.write_text(whole + TEST.format(op="sendrecv"))
    fabric = read_fabric([path], [])
    assert [one.op for one in fabric.benchmarks] == ["alltoall"]
    assert [said for _, said in fabric.problems if "sendrecv of nccl-tests began and has no result" in said]
    path.write_text(whole)
    assert read_fabric([path], []).problems == ()
