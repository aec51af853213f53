"""What each renderer makes of a checkup."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from changed import replace
from html_page import TABLES, TABLES_HASH, Page
from plotly_schema import drawn
from sample_doctor import beyond_help, broken, cpu_only, eight_with_a_slow_pair, healthy, hostile, many_hosts, p2p_off
from sample_fabric import shm_log, sweep
from sample_report import HOSTILE

from traceops.core.documents import json_text
from traceops.core.errors import InputError
from traceops.core.units import message_text
from traceops.doctor.document import document_of, read_checkup
from traceops.doctor.model import Checkup, Trial
from traceops.doctor.settings import read_settings
from traceops.fabric.model import Measured, Quote
from traceops.fabric.nccl import NcclLog, NetworkEvent
from traceops.fabric.reference import references_in
from traceops.machine.look import Look
from traceops.render.doctor.html import matrix_table, render_doctor_html, sweep_figure, write_doctor
from traceops.render.doctor.rows import PairMatrix, attempts, pair_matrices, render_doctor_csv
from traceops.render.doctor.terminal import print_doctor
from traceops.render.doctor.text import doctor_verdict
from traceops.schemas import schema_path

ALL = {
    "healthy": healthy(),
    "p2p_off": p2p_off(),
    "broken": broken(),
    "beyond_help": beyond_help(),
    "cpu_only": cpu_only(),
    "eight": eight_with_a_slow_pair(),
    "many": many_hosts(),
    "hostile": hostile(HOSTILE),
}
SCHEMA = json.loads(schema_path("doctor").read_text())


def doctor_document(checkup: Checkup) -> dict[str, Any]:
    """The object that doctor.json holds."""
    return json.loads(json_text(document_of(checkup)))


@pytest.fixture(params=ALL)
def checkup(request: pytest.FixtureRequest) -> Checkup:
    return ALL[request.param]


def printed(checkup: Checkup, **options: Any) -> str:
    out = io.StringIO()
    print_doctor(checkup, out, [Path("reports/x/doctor.html"), Path("reports/x/doctor.json")], **options)
    return out.getvalue()


def page(checkup: Checkup) -> Page:
    return Page(render_doctor_html(checkup, plotlyjs="cdn"))


@pytest.mark.parametrize(
    ("name", "level", "said"),
    [
        ("healthy", "clear", "Nothing wrong was found: all_reduce 351 GB/s at 256 MiB."),
        (
            "p2p_off",
            "warning",
            "All-reduce gets 17.9 GB/s as the environment is, and 351 GB/s without NCCL_P2P_DISABLE, 19.6 times as "
            "fast.",
        ),
        (
            "broken",
            "error",
            "As the environment is, ranks cannot work together: all_reduce hung after 30 s: rank 1 stood at: "
            "all_reduce of 4 MiB. It works with NCCL_P2P_DISABLE=1, all-reduce at 9.2 GB/s.",
        ),
        (
            "beyond_help",
            "error",
            "No setting that was tried lets several GPUs work together here. Train on one GPU that accumulates "
            "gradients over 2 batches per step.",
        ),
        ("cpu_only", "clear", "Nothing wrong was found on gloo, without GPUs: all_reduce 1.1 GB/s at 256 MiB."),
        ("eight", "warning", "GPU3: Gen5 ×8; its siblings have ×16."),
        ("many", "error", "/dev/shm: 64 MB; too small."),
    ],
)
def test_the_verdict_says_what_to_act_on(name: str, level: str, said: str) -> None:
    found = doctor_verdict(ALL[name])
    assert (found.level, found.sentence) == (level, said)
    assert said in page(ALL[name]).text()
    assert " ".join(said.replace("–", "-").split()) in " ".join(printed(ALL[name]).split())


def test_what_failed_and_worked_the_next_time_is_a_warning() -> None:
    again = Look("a", "tests", "the same again", "worked, with nothing changed", "warning", rule="TO-D607")
    failed = Trial("start", "failed", (0, 1), 7.9, 130.0, "rank 1 was killed by SIGKILL")
    passed = replace(healthy(), looks=(again,), trials=(failed,))
    found = doctor_verdict(passed)
    assert (found.level, found.sentence) == (
        "warning",
        "start failed: rank 1 was killed by SIGKILL. It worked the next time, with nothing changed: it may come and "
        "go.",
    )
    assert doctor_verdict(replace(passed, looks=())).level == "error"


def test_json_is_as_published(checkup: Checkup) -> None:
    jsonschema.validate(doctor_document(checkup), SCHEMA)


def test_the_schema_is_valid_shares_with_the_reports_and_refuses_what_is_wrong() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    shared = json.loads(schema_path("report").read_text())
    both = SCHEMA["$defs"].keys() & shared["$defs"].keys()
    assert {"Finding", "Check", "Tool", "Measured", "NcclJson", "Reference"} <= both
    assert all(SCHEMA["$defs"][name] == shared["$defs"][name] for name in both)
    for key in ("findings", "checks", "tool"):
        assert SCHEMA["properties"][key] == shared["properties"][key]
    wrong = doctor_document(healthy())
    wrong["trials"][0]["outcome"] = "fine"
    with pytest.raises(jsonschema.ValidationError, match="fine"):
        jsonschema.validate(wrong, SCHEMA)


def test_run_and_analyze_read_back_what_was_written(tmp_path: Path) -> None:
    paths = write_doctor(p2p_off(), tmp_path, ("json",))
    assert read_settings(paths[0]).unset == ("NCCL_P2P_DISABLE",)
    (path,) = write_doctor(beyond_help(), tmp_path, ("json",))
    assert read_settings(path).fallback == 2
    (path,) = write_doctor(healthy(), tmp_path, ("json",))
    (reference,) = references_in(path)
    assert reference.measured == healthy().references[0].measured


def test_a_checkup_is_shown_elsewhere_as_where_it_was_made(checkup: Checkup, tmp_path: Path) -> None:
    (path,) = write_doctor(checkup, tmp_path, ("json",))
    again = read_checkup(path)
    assert again is not None and doctor_document(again) == doctor_document(checkup)
    assert printed(again, verbose=True) == printed(checkup, verbose=True)


def test_what_is_no_checkup_or_a_damaged_one(tmp_path: Path) -> None:
    (path,) = write_doctor(healthy(), tmp_path, ("json",))
    content = json.loads(path.read_text())
    for change, said in ({"schema_version": 99}, "version 99"), ({"trials": 5}, "trials"):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError, match=said):
            read_checkup(path)
    path.write_text('{"measured": []}')
    assert read_checkup(path) is None and read_checkup(tmp_path) is None


def test_files_of_an_earlier_checkup_go(tmp_path: Path) -> None:
    names = [path.name for path in write_doctor(broken(), tmp_path)]
    assert names == ["doctor.html", "doctor.json", "looks.csv", "trials.csv", "bandwidth.csv", "findings.csv"]
    assert [path.name for path in write_doctor(healthy(), tmp_path, ("json",))] == ["doctor.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["doctor.json"]


def test_csv_files_have_every_row_and_nothing_unknown_as_zero(checkup: Checkup) -> None:
    files = {name: list(csv.DictReader(io.StringIO(text))) for name, text in render_doctor_csv(checkup).items()}
    assert len(files["looks.csv"]) == len(checkup.looks)
    assert len(files["trials.csv"]) == len(checkup.trials)
    assert len(files["bandwidth.csv"]) >= len(checkup.measured)
    assert len(files["findings.csv"]) == len(checkup.findings)


def test_bandwidth_of_a_change_says_so() -> None:
    rows = list(csv.DictReader(io.StringIO(render_doctor_csv(p2p_off())["bandwidth.csv"])))
    changed = [row for row in rows if row["unset"] == "NCCL_P2P_DISABLE"]
    assert len(changed) == 7 and max(float(row["busbw_gbs"]) for row in changed) == pytest.approx(350.6, abs=1)
    assert all(row["set"] == "" and row["unset"] == "" for row in rows[: len(p2p_off().measured)])


def test_bandwidth_of_the_change_that_works_best_is_not_the_environment_s() -> None:
    checkup = p2p_off()
    best = next(trial for trial in checkup.trials if trial.unset and trial.measured)
    own = tuple(
        replace(trial, measured=sweep("all_reduce", range(4), 18.0)) if trial.name == "sweep" and not trial.unset
        and not trial.set else trial for trial in checkup.trials
    )  # fmt: skip
    checkup = replace(checkup, measured=best.measured, trials=own)
    rows = list(csv.DictReader(io.StringIO(render_doctor_csv(checkup)["bandwidth.csv"])))
    most = {
        unset: max(float(row["busbw_gbs"]) for row in rows if row["unset"] == unset and not row["set"])
        for unset in ("", "NCCL_P2P_DISABLE")
    }
    assert most[""] < 18.0 < most["NCCL_P2P_DISABLE"]
    assert "Bus bandwidth without NCCL_P2P_DISABLE, GPU 0-3: all_reduce" in printed(checkup)
    assert "of each operation without NCCL_P2P_DISABLE;" in page(checkup).text()
    # The figure has what was measured over the way that NCCL takes without the change.
    beside = page(checkup).text().partition("measured with all GPUs: all_reduce ")[2]
    assert float(beside.split()[0]) == 18.0
    unmeasured = (replace(one, measured=()) for one in own if one.as_it_is)
    without = replace(checkup, trials=(*unmeasured, best))
    assert "measured with all GPUs" not in page(without).text()


def test_pages_nest_link_and_run_nothing_of_others(checkup: Checkup) -> None:
    shown = page(checkup)
    assert shown.mismatched == [] and shown.open == []
    ids = [a["id"] for _, a in shown.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in shown.all("a"))
    assert not any("onerror" in attributes for _, attributes in shown.elements)
    policy = next(a["content"] or "" for a in shown.all("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src ")
    if sweep_figure(checkup.measured, checkup.references) is None:
        assert set(shown.scripts()) <= {TABLES} and len(shown.all("script")) <= 1
        assert f"script-src 'sha256-{TABLES_HASH}';" in policy or "script-src 'none'" in policy


def test_the_page_has_the_lines_to_paste() -> None:
    shown = page(p2p_off()).text()
    assert "unset NCCL_P2P_DISABLE" in shown
    assert "NCCL leaves the links unused" in shown
    assert "export NCCL_P2P_DISABLE=1" in page(broken()).text()
    assert "traceops run --fallback single -- YOUR_SCRIPT" in page(beyond_help()).text()


def test_the_figure_marks_a_gpu_that_fails_by_itself() -> None:
    bad = Look("vm", "tests", "GPU 2 alone", "does not work either", "error", facts={"gpus": [2], "alone": True})
    shown = page(replace(healthy(), looks=(*healthy().looks, bad))).text()
    assert "fails alone" in shown.partition("GPU2")[2].partition("GPU3")[0]


def test_what_could_not_be_looked_at_is_there_and_not_all_right() -> None:
    shown = page(healthy()).text()
    assert "not evaluated" in shown and "no InfiniBand device" in shown


def test_the_sweep_is_a_figure_of_plotly_with_the_earlier_reference() -> None:
    figure = sweep_figure(healthy().measured, healthy().references)
    assert figure is not None
    drawn(figure)
    assert [trace["name"] for trace in figure["data"]] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_reduce as measured before on node-1",
    ]
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert figure["data"][0]["y"][-1] == pytest.approx(350.6, abs=0.1)
    hostile_figure = sweep_figure(hostile(HOSTILE).measured, hostile(HOSTILE).references)
    assert hostile_figure is not None and "<b>" not in json.dumps(drawn(hostile_figure).to_dict())


def test_one_size_is_no_sweep_and_equal_references_are_not_drawn_twice() -> None:
    one = Measured("all_reduce", (0, 1), 1 << 20, 10.0, 100.0)
    assert sweep_figure([one]) is None
    measured = healthy().measured
    again = [type(r)(r.host, r.gpu, r.topology, 0.0, measured) for r in healthy().references]
    figure = sweep_figure(measured, again)
    assert figure is not None and len(figure["data"]) == 3


def test_the_matrix_marks_what_is_far_below_the_others() -> None:
    (matrix,) = pair_matrices(eight_with_a_slow_pair())
    assert matrix.slow == {(3, 5), (5, 3)} and len(matrix.gbs) == 56
    text = printed(eight_with_a_slow_pair())
    assert text.count("90.0!") == 2 and "GPU3 to GPU5" in text
    shown = page(eight_with_a_slow_pair())
    assert sum(a.get("class") == "worst number" for a in shown.all("td")) == 2
    assert sum("heat" in (a.get("class") or "") for a in shown.all("td")) == 54


def test_a_pair_that_hung_stands_in_the_matrix_without_a_number() -> None:
    (matrix,) = pair_matrices(broken())
    assert matrix.gbs == {} and matrix.outcomes == {(0, 1): "hung", (1, 0): "hung"}


def test_both_directions_of_a_pair_are_kept_apart() -> None:
    rows = (Measured("send_recv", (0, 1), 1 << 28, 1.0, 20.0), Measured("send_recv", (1, 0), 1 << 28, 1.0, 8.0))
    (matrix,) = pair_matrices(Checkup((), "nccl", 0.0, 0.0, (), (), (), (), (), measured=rows))
    assert matrix.gbs == {(0, 1): 20.0, (1, 0): 8.0}


def test_ranks_of_one_cpu_differ_by_what_else_runs_there() -> None:
    rows = tuple(
        Measured("send_recv", pair, 1 << 22, 1.0, gbs, "cpu-host", "gloo")
        for pair, gbs in {(0, 1): 1.0, (1, 0): 5.4}.items()
    )
    (matrix,) = pair_matrices(replace(cpu_only(), measured=rows))
    assert matrix.slow == frozenset()
    over_hosts = tuple(replace(row, host=None) for row in rows)
    (matrix,) = pair_matrices(replace(cpu_only(), measured=over_hosts))
    assert matrix.slow == {(0, 1)}


def test_a_saved_log_says_which_way_nccl_went_and_leaves_the_gpus_open() -> None:
    saved = Checkup((), "nccl", 0.0, 0.0, (), (), (), (), (), log=shm_log())
    assert "made 1 communicator of 4 ranks" in printed(saved)
    assert "It took SHM/direct for 4 connections inside hosts" in " ".join(printed(saved).split())
    assert "Hosts–GPUs–" in "".join(page(saved).text().split())


def test_a_command_can_be_copied_from_the_table_of_looks() -> None:
    look = Look("a", "environment", "GLOO_SOCKET_IFNAME", "no0", "error", "no interface", "export X=eth0")
    text = page(replace(cpu_only(), looks=(look,))).text()
    assert "no interface. export X=eth0" in text and "eth0." not in text


def test_what_was_tried_comes_with_what_it_gave() -> None:
    rows = [(one.change, one.works, one.gbs, one.chosen) for one in attempts(p2p_off())]
    assert rows[0] == ("the environment as it is", True, 17.9, False)
    assert rows[1] == ("without NCCL_P2P_DISABLE", True, 351.1, True)
    assert rows[2][0] == "NCCL_ALGO=Tree" and not rows[2][3]
    failed = attempts(broken())[0]
    assert not failed.works and failed.gbs is None and "all_reduce hung" in failed.said
    assert attempts(healthy()) == []


def test_the_terminal_leads_with_the_machine_and_what_is_wrong() -> None:
    lines = printed(p2p_off()).splitlines()
    assert lines[0] == "node-1: 4 × NVIDIA H200"
    assert lines[2].startswith("▲ All-reduce gets 17.9 GB/s")
    assert "    nccl.log:140  vm:2225:2225 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct" in lines
    assert "unset NCCL_P2P_DISABLE" in lines
    assert lines[-1] == "Report: reports/x/doctor.html (beside it doctor.json)"


def test_what_is_all_right_is_listed_with_v_only() -> None:
    assert "128 GB" not in printed(healthy()) and "128 GB" in printed(healthy(), verbose=True)
    assert "NCCL_ALGO=Tree" in printed(p2p_off(), verbose=True)


def test_one_host_of_many_is_named() -> None:
    assert "✖ memory, /dev/shm (node-4): 64 MB; too small" in printed(many_hosts())
    assert printed(many_hosts()).startswith("node-1 and 3 more: 4 × NVIDIA H200")


def test_tests_and_bandwidths_of_several_nodes_say_where() -> None:
    trials = tuple(
        Trial("sweep", "ok", tuple(range(4 * len(hosts))), 1.0, 60.0, hosts=hosts)
        for hosts in (("node-1",), ("node-2",), ("node-1", "node-2"))
    )
    measured = (
        *sweep("all_reduce", range(4), 350.0, "node-1"),
        *(replace(one, host=None) for one in sweep("all_reduce", range(8), 90.0)),
    )
    checkup = replace(many_hosts(2), looks=(), trials=trials, measured=measured)
    assert doctor_verdict(checkup).sentence.endswith("GB/s at 256 MiB over all nodes.")
    text, shown = printed(checkup), page(checkup).text()
    for where in ("GPU 0-3 of node-1", "GPU 0-3 of node-2", "ranks 0-7 of 2 nodes"):
        assert where in text and where.replace("-3", "–3").replace("-7", "–7") in shown
    assert "Bus bandwidth, ranks 0-7 of all nodes: all_reduce" in text and "ranks 0–7 of all nodes" in shown
    rows = list(csv.DictReader(io.StringIO(render_doctor_csv(checkup)["trials.csv"])))
    assert [row["hosts"] for row in rows] == ["node-1", "node-2", "node-1 node-2"]


def test_names_cannot_steer_the_terminal() -> None:
    text = printed(hostile("\x1b[31mred\x07[bold]"), verbose=True)
    assert "\x1b" not in text and "\x07" not in text and "[bold]" in text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(1 << 28, "256 MiB"), (1 << 16, "64 KiB"), (1000, "1.0 kB"), (3 << 30, "3 GiB"), (8, "8 B")]
)
def test_sizes_of_messages(nbytes: int, text: str) -> None:
    assert message_text(nbytes) == text


def test_numbers_that_are_none_are_null() -> None:
    odd = replace(healthy(), seconds=math.nan)
    assert doctor_document(odd)["seconds"] is None


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_fit_and_say_nothing_in_a_browser(browser: Any, tmp_path: Path, width: int) -> None:
    said: list[str] = []
    inside = "b => { const g = b.parentNode.querySelector('rect').getBBox(), t = b.getBBox();"
    inside += " return t.x >= g.x && t.x + t.width <= g.x + g.width && t.y + t.height <= g.y + g.height }"
    tab = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    for name in ("eight", "broken", "cpu_only", "hostile"):
        (path,) = write_doctor(ALL[name], tmp_path / name, ("html",))
        tab.goto(path.as_uri())
        assert not tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"), name
        assert tab.locator("svg.topo:visible").count() == 1
        for text in tab.locator("svg.topo:visible g text").element_handles():
            assert text.evaluate(inside), (name, text.text_content())
    assert said == []


def test_what_did_not_work_is_named_as_what_was_tested() -> None:
    on_cpu = replace(beyond_help(), backend="gloo")
    assert "several processes work together here. Train on one process" in doctor_verdict(on_cpu).sentence
    no_time = replace(beyond_help(), trials=beyond_help().trials[:1])
    assert "no time to try settings (--budget)" in doctor_verdict(no_time).sentence


def test_what_nccl_warned_of_in_a_saved_log_is_no_clean_bill() -> None:
    """pytorch/ci-infra pull request 490: nothing but NCCL's own line says that /dev/shm is full."""
    full = "shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-{} to 9637892 bytes, error: No space left"
    absent = "ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]"  # up to 2.10 so, on every machine without IB
    texts = [f"vm:{pid}:{pid} [0] {text}" for pid, text in enumerate((absent, full.format("WU88"), full.format("4x")))]
    quotes = tuple(Quote("nccl.log", number, text) for number, text in enumerate(texts, 1))
    events = (NetworkEvent("no_library", "vm", 0, quotes[0], "IB"),)
    seen = replace(healthy(), log=NcclLog(("nccl.log",), warnings=quotes, network_events=events), trials=(), looks=())
    said = "No rule says what is wrong, but NCCL itself warned: Error: failed to extend /dev/shm/nccl-WU88"
    assert doctor_verdict(seen).sentence.startswith(said)
    assert doctor_verdict(seen).sentence.endswith("No space left.")  # of both processes once
    assert "nccl.log:2: vm:1:1 [0] shmutils.cc:88" in printed(seen)
    assert said in page(seen).text()
    quiet = replace(seen, log=NcclLog(("nccl.log",), warnings=quotes[:1], network_events=events))
    assert "Nothing wrong was found" in doctor_verdict(quiet).sentence


def test_pairs_that_moved_nothing_have_the_lightest_colour():
    """As a damaged doctor.json says it: this ended in a division by zero."""
    matrix = PairMatrix(None, (0, 1), {(0, 1): 0.0, (1, 0): 0.0}, {}, frozenset())
    cells = [row[1 + column] for row, column in zip(matrix_table(matrix).rows, (1, 0), strict=True)]
    assert [cell.colour for cell in cells] == ["rgba(0, 114, 178, 0.060)"] * 2
