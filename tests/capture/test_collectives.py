"""What the flight recorder knows of gloo's collectives, and that its absence costs nothing."""

import json
import sys
from types import SimpleNamespace

import pytest

from traceops.capture.trace_file import recorded_collectives
from traceops.core.rank_files import RECORDED_KEY

ENTRY = {
    "profiling_name": "gloo:all_reduce", "process_group": ["3", "mesh_tp"], "collective_seq_id": 4,
    "time_created_ns": 99,
    "input_sizes": [[2, 3], [4]], "output_sizes": [[10]], "input_dtypes": ["Float"],
}  # fmt: skip


@pytest.fixture
def torch_says(monkeypatch):
    def say(backend, dumped):
        here = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_backend_config=lambda: backend
        )
        native = SimpleNamespace(_dump_fr_trace_json=lambda **_: json.dumps(dumped))
        monkeypatch.setitem(sys.modules, "torch.distributed", here)
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", native)

    return say


def test_collectives_of_gloo_are_told(torch_says):
    torch_says("cpu:gloo,cuda:nccl", {"entries": [ENTRY, {**ENTRY, "profiling_name": "nccl:all_reduce"}]})
    (row,) = recorded_collectives()
    assert dict(zip(RECORDED_KEY, row, strict=True)) == {
        "name": "gloo:all_reduce", "group": "3", "description": "mesh_tp", "sequence": 4, "elements_in": 10,
        "elements_out": 10, "dtype": "Float", "created_ns": 99,
    }  # fmt: skip


@pytest.mark.parametrize("dumped", [{}, {"entries": [{"profiling_name": "gloo:barrier"}]}])
def test_a_record_of_another_kind_is_left(torch_says, dumped):
    torch_says("cpu:gloo", dumped)
    assert recorded_collectives() == []


def test_nothing_is_asked_of_nccl(torch_says, monkeypatch):
    torch_says("cuda:nccl", {"entries": [ENTRY]})
    assert recorded_collectives() == []
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d")
    assert recorded_collectives() == []
