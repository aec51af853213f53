"""The table of this machine's GPU: made of what was measured, kept, believed only where it is whole, and used."""

import msgspec
import pytest
from msgspec.structs import replace
from recorded_step import op, tensor, write

from traceops.compute.attainable import (
    H200,
    KeptRates,
    gpu_of,
    is_usable,
    kept_fingerprint,
    product_ns,
    rates_path,
    roofs_of,
)
from traceops.core.errors import InputError
from traceops.core.files import make_own_folder, write_own
from traceops.pipeline.analyze import analyze

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture
def attain():
    return pytest.importorskip("traceops.doctor.attain")  # imports torch


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))


def keep(name, rates):
    path = rates_path(name)
    make_own_folder(path.parent, path.parent)
    write_own(path, msgspec.json.encode(KeptRates(name, rates)))


@pytest.mark.torch
def test_what_was_measured_becomes_a_table_and_the_rest_is_scaled(attain):
    found = {"half": [(2.0, 50.0), (0.1, 10.0), (1000.0, 370.0), (100.0, 380.0)], "copy": [(0.0, 1.85)]}
    rates = attain.rates_of(found)
    assert rates.half == ((0.1, 10.0), (2.0, 50.0), (100.0, 380.0), (1000.0, 380.0))  # larger ones are not slower
    assert rates.memory["copy"] == rates.memory["product"] == 1.85
    assert rates.memory["norm"] == pytest.approx(1.1)  # half as fast as an H200's, as copies are
    assert rates.forward[-1][1] == pytest.approx(800 * 380 / 740)
    with pytest.raises(InputError, match="no products or copies"):
        attain.rates_of({"half": found["half"]})


@pytest.mark.parametrize("name", [A100, "Some GPU that no data sheet knows"])
def test_kept_rates_are_used_for_the_gpu_of_that_name_alone(name):
    shipped, other = gpu_of(name), gpu_of("NVIDIA H200")
    assert shipped.source in ("scaled", "assumed") and kept_fingerprint() == ""
    own = replace(H200, half=((1.0, 100.0), (1000.0, 250.0)), simt=17.0, memory={**H200.memory, "copy": 1.5})
    keep(name, own)
    gpu = gpu_of(name)
    assert gpu.source == "own" and kept_fingerprint()
    assert product_ns(1e12, 0.0, "half", gpu) == pytest.approx(1e12 / 250e3)
    assert roofs_of(gpu).half == pytest.approx(250) and roofs_of(gpu).float32 == pytest.approx(17)
    assert gpu_of("NVIDIA H200") == other


def test_of_the_kind_of_gpu_that_ships_measured_no_rate_falls_below_what_programs_attained():
    keep("NVIDIA H200", replace(H200, memory={**H200.memory, "softmax": 1.3, "norm": 3.0}))
    gpu = gpu_of("NVIDIA H200")
    assert gpu.source == "own" and gpu.rates.memory["softmax"] == H200.memory["softmax"]
    assert gpu.rates.memory["norm"] == 3.0


def test_a_table_with_a_hole_or_of_no_speeds_is_passed_over():
    assert is_usable(H200)
    for broken in (
        replace(H200, half=()), replace(H200, simt=-1.0), replace(H200, memory={"copy": 1.0}),
        replace(H200, forward=((512, 1.0), (64, 1.0))),
    ):  # fmt: skip
        assert not is_usable(broken)
        keep(A100, broken)
        assert gpu_of(A100).source == "scaled"
    rates_path(A100).write_bytes(b"{")
    assert gpu_of(A100).source == "scaled"


def test_the_report_says_which_rates_it_used_and_a_new_table_makes_a_new_summary(tmp_path):
    device = {"id": 0, "name": A100, "numSms": 108}
    product = op("aten::mm", tensor((8192, 4096)), tensor((4096, 4096)), us=2000, kernel="nvjet_h")
    path = write(tmp_path / "trace.json", [product] * 4, device=device)
    before = analyze(path, jobs=1).compute
    assert before.rates == "scaled"
    keep(A100, replace(H200, half=((1.0, 100.0), (1000.0, 150.0))))
    after = analyze(path, jobs=1).compute
    assert after.rates == "own" and after.efficiency_pct > 1.3 * before.efficiency_pct


@pytest.mark.torch
def test_every_kind_that_moves_data_has_its_rate_measured_or_taken_from_a_like_one(attain):
    kinds = {trial.kind for trial in attain.trials()}
    assert {"half", "tf32", "simt", "fp64", "forward", "backward"} <= kinds
    assert set(H200.memory) - kinds <= set(attain._LIKE)


@pytest.mark.torch
def test_without_a_gpu_the_command_says_so(attain, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="sees no GPU"):
        attain.keep_rates()
