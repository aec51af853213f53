"""Machines of one kind have one fingerprint, and another as soon as a GPU, a link or a NIC differs."""

from __future__ import annotations

from itertools import combinations

import pytest
from changed import replace
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.fabric.model import Gpu, Machine, Nic, Path, Pcie, Quote
from traceops.fabric.reference import fingerprint

KINDS = st.lists(st.sampled_from(["NV", "PHB", "SYS"]), min_size=6, max_size=6)
PAIRS = list(combinations(range(4), 2))


def machine(first: int = 0, names=("NVIDIA H200",) * 4, kinds=("NV",) * 6, counts=(18,) * 6, nics=()) -> Machine:
    gpus = tuple(Gpu(first + place, name) for place, name in enumerate(names))
    paths = {
        (gpus[one].label, gpus[other].label): Path(kind, count)
        for (one, other), kind, count in zip(PAIRS, kinds, counts, strict=True)
    }
    return Machine("a", gpus, nics, paths)


NICS = (Nic("NIC0", "mlx5_0", "IB"), Nic("NIC1", "mlx5_1", "IB"))


def test_it_is_short_and_does_not_change_between_versions():
    assert fingerprint(machine()) == "9e6d6514fff7a4d2"


@pytest.mark.parametrize(
    "same",
    [
        replace(machine(nics=NICS), host="b", sources=("x.txt",)),
        machine(first=4, nics=NICS),
        machine(names=("H200",) * 4, nics=NICS[::-1]),
        machine(nics=(*NICS, Nic("NIC2", "eth0", "Ethernet"), Nic("NIC3", "lo"))),
        machine(nics=(replace(NICS[0], label="NIC7", numa=1, up=True), NICS[1])),
    ],
)
def test_what_makes_no_other_machine(same):
    assert fingerprint(same) == fingerprint(machine(nics=NICS))


@pytest.mark.parametrize(
    "other",
    [
        machine(),
        machine(nics=NICS[:1]),
        machine(nics=(replace(NICS[0], up=False), NICS[1])),
        machine(names=("NVIDIA H200",) * 3 + ("NVIDIA H100",), nics=NICS),
        machine(kinds=("NV",) * 5 + ("SYS",), nics=NICS),
        machine(counts=(18,) * 5 + (17,), nics=NICS),
        Machine("a", machine().gpus, NICS),
    ],
)
def test_what_makes_another(other):
    assert fingerprint(other) != fingerprint(machine(nics=NICS))


@examples(60)
@given(
    seed=st.randoms(use_true_random=False),
    kinds=st.lists(st.sampled_from(["NV", "PHB", "SYS"]), min_size=6, max_size=6),
)
def test_order_direction_and_sources_do_not_matter(seed, kinds):
    told = machine(kinds=tuple(kinds), nics=NICS)
    gpus, nics, paths = list(told.gpus), list(told.nics), list(told.paths.items())
    for shuffled in (gpus, nics, paths):
        seed.shuffle(shuffled)
    turned = {
        (pair if seed.random() < 0.5 else pair[::-1]): replace(path, gbs=1.0, quote=Quote("a", 1, "b"))
        for pair, path in paths
    }
    gpus = [replace(gpu, bus_id="0000:01:00.0", numa=1, pcie=Pcie(4, 8)) for gpu in gpus]
    assert fingerprint(Machine(None, tuple(gpus), tuple(nics), turned, ("c",))) == fingerprint(told)
    nodes = tuple(kind.replace("PHB", "NODE") for kind in kinds)  # what NCCL calls PHB, nvidia-smi may call NODE
    assert fingerprint(machine(kinds=nodes, nics=NICS)) == fingerprint(told)
