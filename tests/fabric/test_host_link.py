"""What a GPU's link to its host carries: by the machine's facts, or by its name."""

import pytest

from traceops.fabric.model import Gpu, Machine, Pcie
from traceops.fabric.reference import link_by_name, link_of_machine


@pytest.mark.parametrize(
    ("name", "generation", "gbs"),
    [
        ("NVIDIA H200", 5, 48.0),
        ("NVIDIA H100 80GB HBM3", 5, 48.0),
        ("NVIDIA A100-SXM4-80GB", 4, 24.0),
        ("NVIDIA A10G", 4, 24.0),
        ("NVIDIA L4", 4, 24.0),
        ("NVIDIA GeForce RTX 4090", 4, 24.0),
        ("Tesla V100-SXM2-16GB", 3, 12.0),
        ("Tesla T4", 3, 12.0),
        ("AMD Instinct MI300X", 5, 48.0),
    ],
)
def test_by_name(name, generation, gbs):
    link = link_by_name(name)
    assert (link.generation, link.gbs, link.source) == (generation, gbs, "table")


@pytest.mark.parametrize("name", [None, "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 MIG 1g.10gb", "Iris Xe"])
def test_of_others_nothing_is_known(name):
    assert link_by_name(name) is None


def test_the_narrowest_link_of_the_machines_counts():
    def machine(*links):
        gpus = tuple(Gpu(number, pcie=Pcie(1, 16, *link)) for number, link in enumerate(links))
        return Machine("one", gpus)

    narrow = link_of_machine((machine((5, 16), (4, 8)),))
    assert (narrow.gbs, narrow.generation, narrow.lanes, narrow.source) == (12.0, 4, 8, "machine")
    assert link_of_machine((machine((5, None)),)) is None
    assert link_of_machine(()) is None
