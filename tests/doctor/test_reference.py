"""References are kept by host and topology, read strictly, and a worse one never takes a better one's place."""

from __future__ import annotations

import json

import pytest
from changed import replace

from traceops.core.errors import InputError
from traceops.doctor.document import document_of
from traceops.doctor.model import Checkup
from traceops.doctor.runs import large_all_reduce
from traceops.fabric.model import Gpu, Machine, Measured, Path, Reference
from traceops.fabric.reference import kept_reference, make_reference, references_here, references_in, save_reference
from traceops.report.write import json_text

MACHINE = Machine("a b/../c", (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), paths={("GPU0", "GPU1"): Path("NV", 18)})


def rows(gbs: float) -> tuple[Measured, ...]:
    return (
        Measured("all_reduce", (0, 1), 1 << 16, 20.0, 3.0, "a b/../c"),
        Measured("all_reduce", (0, 1), 1 << 28, 770.0, gbs, "a b/../c"),
        Measured("send_recv", (0, 1), 1 << 27, 700.0, 190.0, "a b/../c"),
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


def test_what_is_kept_comes_back_whole(cache):
    reference = make_reference(MACHINE, rows(350.0), {"NCCL_ALGO": "Ring"}, 1.5e9)
    path = save_reference(reference)
    assert path is not None and path.parent == cache  # whatever the host calls itself
    [back] = references_here()
    assert references_in(path) == (back,)
    assert set(back.measured) == set(reference.measured)
    assert replace(back, measured=reference.measured, source=None) == reference


def best(reference: Reference) -> float | None:
    row = large_all_reduce(reference.measured)
    return row and row.busbw_gbs


def test_a_much_worse_one_does_not_take_its_place_and_another_machines_does_not_concern_it(cache):
    save_reference(make_reference(MACHINE, rows(350.0)))
    save_reference(make_reference(MACHINE, rows(40.0)))
    assert [best(kept) for kept in references_here()] == [350.0]
    save_reference(make_reference(MACHINE, rows(340.0)))  # as good as it: the newer one
    assert [best(kept) for kept in references_here()] == [340.0]
    changed = replace(MACHINE, paths={("GPU0", "GPU1"): Path("PHB")})
    save_reference(make_reference(changed, rows(20.0)))
    assert sorted(best(kept) for kept in references_here()) == [20.0, 340.0]
    kept = kept_reference("a b/../c", make_reference(changed, ()).topology)
    assert kept is not None and best(kept) == 20.0


def test_what_was_not_measured_this_time_stays(cache):
    """Tests of some of the GPUs, or of one more backend, do not take the whole machine's numbers away."""
    save_reference(make_reference(MACHINE, rows(350.0)))
    other = Measured("all_reduce", (0, 1), 1 << 28, 9000.0, 2.0, "a b/../c", "gloo")
    save_reference(make_reference(MACHINE, (other,)))
    [kept] = references_here()
    assert set(kept.measured) == {*rows(350.0), other}


def test_foreign_and_damaged_files_beside_them_are_harmless(cache):
    path = save_reference(make_reference(MACHINE, rows(350.0)))
    good = json.loads(path.read_text())
    damaged = [
        b"", b"{", b"[1]", b"\xff\xfe", b'{"measured": 3, "topology": "x"}', b"[" * 100_000,
        json.dumps({**good, "schema_version": 99}).encode(),
        json.dumps({**good, "measured": [{**good["measured"][0], "busbw_gbs": -1}]}).encode(),
        json.dumps({**good, "measured": [{**good["measured"][0], "busbw_gbs": 1e300}]}).encode(),
        json.dumps({**good, "measured_at": "yesterday"}).encode(),
    ]  # fmt: skip
    for number, content in enumerate(damaged):
        other = cache / f"0{number}.json"
        other.write_bytes(content)
        if content not in (b"[1]",):  # JSON of another kind
            with pytest.raises(InputError, match=f"0{number}.json"):
                references_in(other)
    (cache / "folder.json").mkdir()
    assert [kept.source for kept in references_here()] == [str(path)]
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read"):
        references_in(cache / "nowhere.json")


def test_a_doctor_json_hands_on_its_references_and_other_json_none(tmp_path):
    reference = make_reference(MACHINE, rows(350.0))
    checkup = Checkup(("a",), "nccl", 0.0, 1.0, (MACHINE,), (), (), (), (), references=(reference,))
    path = tmp_path / "doctor.json"
    path.write_text(json_text(document_of(checkup)))
    assert references_in(path) == (replace(reference, source=str(path)),)
    path.write_text('{"traceEvents": []}')
    assert references_in(path) == ()


def test_nowhere_to_keep_it_is_no_error(tmp_path, monkeypatch):
    reference = make_reference(MACHINE, rows(350.0))
    monkeypatch.setenv("TRACEOPS_CACHE", "off")
    assert save_reference(reference) is None and references_here() == ()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "file"))
    assert save_reference(reference) is None and references_here() == ()
