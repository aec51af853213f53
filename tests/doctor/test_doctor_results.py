"""What the doctor keeps and uses again: settings, measured numbers, references, and runs of one job."""

from __future__ import annotations

import json
import subprocess

import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.core.documents import json_text
from traceops.core.errors import InputError
from traceops.doctor.candidates import hidden_but, visible_gpus
from traceops.doctor.conclusions import judge_measured
from traceops.doctor.document import document_of
from traceops.doctor.model import Checkup, PairState, Trial
from traceops.doctor.runs import large_all_reduce, merged
from traceops.doctor.settings import Settings, read_settings, shell_lines
from traceops.fabric.model import Gpu, Machine, Measured, Path, Reference
from traceops.fabric.reference import kept_reference, make_reference, references_here, references_in, save_reference
from traceops.rules.bandwidth import MeasuredLow, SlowPairs


def _write(tmp_path, content):
    path = tmp_path / "doctor.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_settings_and_the_fallback_are_read_beside_other_keys(tmp_path):
    content = {
        "schema_version": 1,
        "settings": {"set": {"NCCL_P2P_DISABLE": "1"}, "unset": ["NCCL_NET"], "does": "…"},
        "fallback": 4,
    }
    settings = read_settings(_write(tmp_path, content))
    assert settings == Settings({"NCCL_P2P_DISABLE": "1"}, ("NCCL_NET",), 4)
    assert settings.apply({"NCCL_NET": "IB", "HOME": "/"}) == {"NCCL_P2P_DISABLE": "1", "HOME": "/"}


def test_a_healthy_machine_needs_none(tmp_path):
    assert read_settings(_write(tmp_path, {"settings": None})) == Settings()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "does not hold settings"),
        ("[]", "does not hold settings"),
        ({}, "settings"),
        ({"settings": {"set": {"NCCL_P2P_DISABLE": 1}}}, "NCCL_P2P_DISABLE|int"),
        ({"settings": {"set": ["A"]}}, "does not hold settings"),
        ({"settings": {"unset": "NCCL_NET"}}, "does not hold settings"),
        ({"settings": {"set": {"A B": "1"}}}, "'A B' is not the name"),
        ({"settings": {"set": {"A\n": "1"}}}, "is not the name"),
        ({"settings": {"set": {"A": "\0"}}}, "NUL"),
        ({"settings": {"set": {"A": "1"}, "unset": ["A"]}}, "one of the two"),
        ({"settings": None, "fallback": 0}, "fallback is 0"),
        ({"settings": None, "fallback": True}, "does not hold settings"),
        ({"settings": None, "schema_version": 3}, "does not hold settings"),
        (b"\xff".decode("latin-1"), "does not hold settings"),
    ],
)
def test_what_the_doctor_would_not_write_is_refused(tmp_path, content, says):
    path = _write(tmp_path, content)
    with pytest.raises(InputError, match=says) as refused:
        read_settings(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read .* traceops doctor writes it"):
        read_settings(tmp_path / "nowhere.json")


def test_a_shell_takes_the_lines_as_they_are_meant():
    lines = shell_lines({"NCCL_SOCKET_IFNAME": "=e'th 0; echo $HOME"}, ("NCCL_NET",))
    script = "\n".join(["NCCL_NET=IB", *lines, 'printf "%s|%s" "$NCCL_SOCKET_IFNAME" "${NCCL_NET-none}"'])
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == "=e'th 0; echo $HOME|none"


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
    claim = claim_of(found[0], MeasuredLow)
    assert (claim.source, claim.reference, claim.pct) == ("before", 20.0, pytest.approx(45.0))
    assert "a gives 9 GB/s" in judged([all_reduce(9.0)], (L4,))["TO-C001"].not_evaluated
    other = Measured("all_reduce", (0, 1, 2, 3), 1 << 28, 1.0, 20.0, "b")
    assert judged([all_reduce(9.0)], (L4,), other)["TO-C001"].not_evaluated


def test_the_gpu_that_all_slow_pairs_share_is_named():
    gbs = {(a, b): 40.0 if 2 in (a, b) else 380.0 for a in range(4) for b in range(4) if a != b}
    found = judged(pairs(gbs))["TO-C002"].findings
    assert len(found) == 1
    claim = claim_of(found[0], SlowPairs)
    assert (claim.slow, claim.all, claim.shared) == (3, 6, "GPU2 is in all of them")


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


def trial(name: str, outcome: str, message: str = "", **more: object) -> Trial:
    return Trial(name, outcome, (0, 1), 3.0, 20.0, message, **more)  # type: ignore[arg-type]


def test_the_worst_that_any_node_says_is_what_became_of_it():
    row = Measured("all_reduce", (0, 1, 2, 3), 1 << 20, 100.0, 5.0)
    slower = Measured("all_reduce", (0, 1, 2, 3), 1 << 20, 120.0, 4.2)
    one = (
        trial("start", "failed", "connection refused", said=("rank 0: refused",), failed=(0,)),
        trial("sweep", "ok", measured=(row,), pairs=(PairState((0, 1), "ok"), PairState((0, 2), "not_evaluated"))),
    )
    other = (
        trial("start", "hung", "stood at the store"),
        trial("sweep", "ok", measured=(slower,), pairs=(PairState((0, 2), "hung"), PairState((2, 3), "ok"))),
    )
    start, sweep = merged((one, other), ("a", "b"))
    assert start.outcome == "hung" and start.hosts == ("a", "b") and start.gpus == (0, 1, 2, 3)
    assert start.message == "a: connection refused; b: stood at the store"
    assert start.said == ("a: rank 0: refused",) and start.failed == (0,)
    assert sweep.measured == (slower,)
    # Rank 0 never came to the pair in which rank 2 waited for it.
    assert sweep.pairs == (PairState((0, 1), "ok"), PairState((0, 2), "not_evaluated"), PairState((2, 3), "ok"))


MACHINE = Machine("a", tuple(Gpu(index, uuid=f"GPU-{index}{index}ab") for index in range(4)))


def test_visible_gpus_come_in_cudas_order_and_end_where_it_ends():
    seen = {
        None: (0, 1, 2, 3), "": (), "-1": (), "2,0": (2, 0), " 1 , 3": (1, 3), "0,9,1": (0,), "1,1": (1,),
        "GPU-22,GPU-0": (2, 0), "GPU-": (), "MIG-x,MIG-y": (0, 1),
    }  # fmt: skip
    for names, gpus in seen.items():
        environ = {} if names is None else {"CUDA_VISIBLE_DEVICES": names}
        assert visible_gpus(MACHINE, environ) == gpus, names


def test_hiding_one_keeps_the_words_that_were_used():
    assert hidden_but((0, 1, 3), {}, (0, 1, 2, 3)) == "0,1,3"
    assert hidden_but((2,), {"CUDA_VISIBLE_DEVICES": "GPU-22,GPU-0"}, (2, 0)) == "GPU-22"
    assert hidden_but((2,), {"CUDA_VISIBLE_DEVICES": "2,0,9"}, (2, 0)) == "2"


TWO_H200 = Machine("a b/../c", (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), paths={("GPU0", "GPU1"): Path("NV", 18)})


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
    reference = make_reference(TWO_H200, rows(350.0), {"NCCL_ALGO": "Ring"}, 1.5e9)
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
    save_reference(make_reference(TWO_H200, rows(350.0)))
    save_reference(make_reference(TWO_H200, rows(40.0)))
    assert [best(kept) for kept in references_here()] == [350.0]
    save_reference(make_reference(TWO_H200, rows(340.0)))  # as good as it: the newer one
    assert [best(kept) for kept in references_here()] == [340.0]
    changed = replace(TWO_H200, paths={("GPU0", "GPU1"): Path("PHB")})
    save_reference(make_reference(changed, rows(20.0)))
    assert sorted(best(kept) for kept in references_here()) == [20.0, 340.0]
    kept = kept_reference("a b/../c", make_reference(changed, ()).topology)
    assert kept is not None and best(kept) == 20.0


def test_what_was_not_measured_this_time_stays(cache):
    """Tests of some of the GPUs, or of one more backend, do not take the whole machine's numbers away."""
    save_reference(make_reference(TWO_H200, rows(350.0)))
    other = Measured("all_reduce", (0, 1), 1 << 28, 9000.0, 2.0, "a b/../c", "gloo")
    save_reference(make_reference(TWO_H200, (other,)))
    [kept] = references_here()
    assert set(kept.measured) == {*rows(350.0), other}


def test_foreign_and_damaged_files_beside_them_are_harmless(cache):
    path = save_reference(make_reference(TWO_H200, rows(350.0)))
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
    reference = make_reference(TWO_H200, rows(350.0))
    checkup = Checkup(("a",), "nccl", 0.0, 1.0, (TWO_H200,), (), (), (), (), references=(reference,))
    path = tmp_path / "doctor.json"
    path.write_text(json_text(document_of(checkup)))
    assert references_in(path) == (replace(reference, source=str(path)),)
    path.write_text('{"traceEvents": []}')
    assert references_in(path) == ()


def test_nowhere_to_keep_it_is_no_error(tmp_path, monkeypatch):
    reference = make_reference(TWO_H200, rows(350.0))
    monkeypatch.setenv("TRACEOPS_CACHE", "off")
    assert save_reference(reference) is None and references_here() == ()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "file"))
    assert save_reference(reference) is None and references_here() == ()
