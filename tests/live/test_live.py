"""The monitor's parts: what ranks write, changes of pace, causes, and what others read of it."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks.live.generated import START_NS, Files, GeneratedRank, Scene, StepParts, played
from traceops.answers.opening import opened_live
from traceops.capture.observing.observer import Observer
from traceops.cli import main as cli
from traceops.cli.open import page_of, serve
from traceops.core.errors import InputError, UsageError
from traceops.core.live_pulses import ENDED, KINDS, SLOTS, Pulse, new_file, place_of, read_pulses
from traceops.core.rank_files import OBSERVED_FILE
from traceops.integrations import held_capture
from traceops.live import monitor, outlets
from traceops.live.findings import (
    Detection,
    Lags,
    MemoryGrows,
    RankEvidence,
    Slower,
    Stuck,
    Why,
    beyond_chance,
    causes_of,
)  # fmt: skip
from traceops.live.job import Job
from traceops.live.machines import MachineReader
from traceops.live.measures import Pace, RankState, at_peaks, growth, steady_growth
from traceops.live.monitor import watched_folder
from traceops.live.outlets import Metrics, Otlp, address_of, metrics_text
from traceops.live.stream import LineReader, LineTime, RankLook, RankReader, Step
from traceops.pipeline.analyze import analyze


def pulse(number: int, steps: int = 0) -> Pulse:
    return Pulse(number, START_NS + number, steps, START_NS, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, (0,) * len(KINDS))


def test_a_ring_of_pulses_keeps_the_latest(tmp_path):
    path = tmp_path / "live.bin"
    content = bytearray(new_file(0).ljust(place_of(SLOTS - 1) + len(new_file(0)), b"\0"))
    for number in range(SLOTS + 10):
        content[place_of(number) : place_of(number) + len(new_file(0))] = pulse(number).pack()
    head = bytearray(new_file(0))
    head[24:32] = (SLOTS + 10).to_bytes(8, "little")
    content[: len(head)] = head
    path.write_bytes(content)
    assert [one.number for one in read_pulses(path)] == list(range(10, SLOTS + 10))
    assert [one.number for one in read_pulses(path, after=SLOTS + 6)] == [SLOTS + 7, SLOTS + 8, SLOTS + 9]
    assert read_pulses(tmp_path / "none") == []


def fed(pace: Pace, steps: list[float], begin: int = 0) -> Pace:
    for number, ms in enumerate(steps, begin):
        pace.feed(number, ms)
    return pace


def noisy(random: Random, ms: float, count: int) -> list[float]:
    return [ms * random.lognormvariate(0, 0.05) for _ in range(count)]


def test_pulses_that_begin_anew_are_read_from_their_start(tmp_path):
    rank = GeneratedRank(tmp_path / "rank_0", 0, Random(1))
    reader, state = RankReader(rank.folder, 0), RankState(0)
    for second in range(9):
        rank.write(START_NS + second, START_NS)
    state.take(reader.look())
    GeneratedRank.__post_init__(rank)
    rank._pulses, rank.step = 0, 20
    rank.write(START_NS + 100, START_NS + 99)
    state.take(reader.look())
    assert [(pulse.number, pulse.steps) for pulse in state.pulses] == [(0, 20)]


def test_a_change_of_pace_is_found_where_it_begins():
    random = Random(1)
    pace = fed(Pace(), noisy(random, 50, 200))
    assert pace.change is None and pace.usual_ms == pytest.approx(50, rel=0.05)
    fed(pace, noisy(random, 65, 12), 200)
    assert pace.change is not None and abs(pace.change.since - 200) <= 2
    assert pace.change.now_ms == pytest.approx(65, rel=0.1)
    fed(pace, noisy(random, 50, 40), 212)
    assert pace.change is None


def test_single_long_steps_and_what_is_known_of_them_are_no_change():
    random = Random(2)
    pace = fed(Pace(), noisy(random, 50, 100))
    for number in range(100, 400):
        pace.feed(number, 2_000 if number % 20 == 0 else 50 * random.lognormvariate(0, 0.05))
        assert pace.change is None
    for number in range(400, 420):
        pace.feed(number, 550, known_ms=500)
        assert pace.change is None


def test_a_slow_creep_is_a_change_too():
    pace = Pace()
    steps = [50 * (1 + max(number - 100, 0) / 3_000) for number in range(1_500)]
    fed(pace, steps)
    assert pace.change is not None


def evidence(rank: int, **given: object) -> RankEvidence:
    return RankEvidence(**{"rank": rank, "before_ms": 50.0, "now_ms": 80.0, "looks": (200, 50), **given})


def test_the_rank_whose_own_work_grew_is_the_cause_and_not_who_waits_for_it():
    line = LineTime("train.py", 7, "main", "check(batch)", 28.0)
    found = causes_of([evidence(0, grew_ms={"backward": 30.0}), evidence(1, grew_ms={"own": 29.0}, lines=(line,))])[0]
    assert (found.why, found.ranks, found.line) == (Why.HOST, (1,), line)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"grew_ms": {"input": 28.0}}, Why.INPUT),
        ({"grew_ms": {"own": 28.0}, "garbage_ms": 25.0}, Why.GARBAGE),
        ({"grew_ms": {"own": 28.0}, "cores_ms": 25.0, "ran_ms": 1.0}, Why.CORES),
        ({"grew_ms": {"checkpoint": 28.0}}, Why.CHECKPOINT),
        ({"grew_ms": {}, "strangers": (7,)}, Why.STRANGER),
        ({"grew_ms": {}, "throttle": ("heat", 1980, 1200)}, Why.THROTTLE),
        ({"grew_ms": {}, "retries": 1.0}, Why.ALLOCATOR),
        ({"grew_ms": {"own": 28.0}, "looks": (200, 2)}, Why.UNKNOWN),
    ],
)
def test_causes_of_one_rank(given, why):
    found = causes_of([evidence(0, grew_ms={"backward": 2.0}), evidence(1, **given), evidence(2, grew_ms={})])[0]
    assert found.why is why and found.ranks == ((1,) if why is not Why.UNKNOWN else (0, 1, 2))


def test_ranks_that_all_do_more_of_everything_have_more_work():
    before = {"own": 20.0, "backward": 30.0}
    given = {"before_kinds_ms": before, "grew_ms": {"own": 12.0, "backward": 18.0}, "ran_ms": 25.0}
    assert causes_of([evidence(rank, **given) for rank in range(4)])[0].why is Why.WORKLOAD
    waits = {"grew_ms": {"backward": 29.0}}
    assert causes_of([evidence(rank, **waits) for rank in range(4)])[0].why is Why.EXCHANGE


@pytest.mark.parametrize(("held", "why"), [((1.0, 1.4), Why.DEVICE), ((1.01, 1.01), Why.WORKLOAD)])
def test_gpus_that_take_longer_have_more_work_if_steps_need_more_memory_on_all_of_them(held, why):
    given = {"grew_ms": {"waiting": 29.0}, "before_kinds_ms": {"own": 20.0, "waiting": 30.0}, "on_gpu": True}
    assert causes_of([evidence(rank, held=held[rank], **given) for rank in range(2)])[0].why is why


def test_growth_is_steady():
    mib = 1 << 20
    assert growth([1000 * mib + 2 * mib * at for at in range(200)]) is not None
    assert growth([1000 * mib] * 100 + [2000 * mib] * 100) is None
    assert growth([1000 * mib + mib * (at % 20) for at in range(200)]) is None


def test_memory_of_a_gpu_grows_whichever_moment_of_a_step_pulses_come_at():
    """A leak of 140 MB/s on an H200 was not seen: one pulse in three was at the end of a step, with 1 GB less."""
    held = [(3 << 30) + max(at - 20, 0) * (70 << 20) - (1 << 30) * (at % 3 == 1) for at in range(45)]
    sizes = [(at / 2, size) for at, size in enumerate(held)]
    assert steady_growth(sizes) is None
    assert steady_growth([(at, peak) for (at, _), peak in zip(sizes, at_peaks(held), strict=True)]) is not None


def test_growth_that_began_a_moment_ago_counts_where_nothing_grew_before():
    mib = 1 << 20

    def sizes(begin: int, before: float) -> list[tuple[float, float]]:
        pulses = [second / 2 for second in range(60)]
        return [(at, mib * (1000 + before * at + 50 * max(at - begin, 0))) for at in pulses]

    assert steady_growth(sizes(21, 0)) == (pytest.approx(60 * 50 * mib, rel=0.05), 480)
    assert steady_growth(sizes(26, 0)) is None  # for 4 s only
    assert steady_growth(sizes(21, 40)) is None  # as it did all the time, and this job is too young for that
    jump = [(at / 2, 1000 * mib + (3000 * mib if at > 50 else 0)) for at in range(60)]
    assert steady_growth(jump) is None
    settles = [(at / 2, mib * (1000 + 4000 * (1 - 0.5 ** (at / 40)))) for at in range(100)]
    assert steady_growth(settles) is None


def test_chance_among_many_ranks_names_no_host():
    before = {"own": 20.0, "optimizer": 5.0, "backward": 25.0}
    random = Random(5)
    for _ in range(200):
        ranks = []
        for rank in range(8):
            looks = [random.choices(("own", "optimizer", "backward"), (20, 5, 55), k=1)[0] for _ in range(100)]
            now = {kind: 80.0 * looks.count(kind) / len(looks) for kind in before}
            grew = {kind: now[kind] - before[kind] for kind in before}
            ranks.append(evidence(rank, before_kinds_ms=before, grew_ms=grew, looks=(300, 100)))
        assert [one.why for one in causes_of(ranks)] == [Why.EXCHANGE]


def test_two_kinds_of_work_of_one_rank_are_both_named_with_their_lines():
    loads = LineTime("train.py", 3, "main", "for batch in loader:", 14.0, input=True)
    checks = LineTime("train.py", 7, "main", "check(batch)", 15.0)
    before = {"own": 20.0, "input": 1.0, "backward": 29.0}
    grew = {"own": 15.0, "input": 14.0, "backward": 1.0}
    slow = evidence(1, grew_ms=grew, lines=(loads, checks), before_kinds_ms=before, looks=(400, 200))
    waits = evidence(0, grew_ms={"backward": 30.0}, before_kinds_ms=before)
    found = {cause.why: cause for cause in causes_of([waits, slow])}
    assert found[Why.HOST].line == checks and found[Why.INPUT].line == loads
    assert all(cause.ranks == (1,) for cause in found.values())


@pytest.mark.parametrize(
    ("elsewhere", "surprise", "named"), [(0.0, 12.0, True), (14.0, 12.0, False), (0.0, 4.0, False)]
)
def test_a_line_that_grew_beyond_chance_on_one_rank_names_its_host_where_few_looks_hide_the_kind(
    elsewhere, surprise, named
):
    line = LineTime("train.py", 7, "main", "check(batch)", 16.0, kind="own", surprise=surprise)
    given = {"now_ms": 200.0, "before_kinds_ms": {"own": 20.0, "backward": 30.0}, "looks": (70, 120)}
    slowest = evidence(0, grew_ms={"input": 149.0}, **given)
    hidden = evidence(1, grew_ms={"own": 16.0, "backward": 134.0}, grown=(line,), **given)
    more = (msgspec.structs.replace(line, ms=elsewhere),) if elsewhere else ()
    waits = evidence(2, grew_ms={"backward": 150.0}, grown=more, **given)
    assert (1 in {rank for cause in causes_of([slowest, hidden, waits]) for rank in cause.ranks}) is named


def test_what_was_never_seen_before_surprises_more_the_more_often_it_is_seen():
    few, many = (beyond_chance((0, count), (2.0, count / 10)) for count in (6, 60))
    assert 0 < few < many
    assert beyond_chance((20, 40), (1.0, 2.0)) == 0.0


def test_garbage_is_not_named_as_slow_host_work_too_unless_more_grew():
    before = {"own": 20.0, "backward": 30.0}
    waits = evidence(0, grew_ms={"backward": 30.0}, before_kinds_ms=before)
    for own, whys in ((16.0, {Why.GARBAGE}), (30.0, {Why.GARBAGE, Why.HOST})):
        grew = {"own": own, "backward": 30.0 - own}
        slow = evidence(1, grew_ms=grew, garbage_ms=15.0, before_kinds_ms=before, looks=(400, 400))
        assert {cause.why for cause in causes_of([waits, slow]) if cause.ranks == (1,)} == whys


def test_what_a_slower_rank_hides_is_named_where_it_would_slow_the_job_by_itself():
    before = {"own": 20.0, "input": 1.0, "backward": 29.0}
    given = {"now_ms": 200.0, "before_kinds_ms": before, "looks": (400, 400)}
    slowest = evidence(0, grew_ms={"own": 149.0}, **given)
    waits = evidence(1, grew_ms={"backward": 150.0}, **given)
    hidden = evidence(2, grew_ms={"input": 30.0, "backward": 120.0}, **given)
    found = [(cause.why, cause.ranks) for cause in causes_of([slowest, waits, hidden])]
    assert found == [(Why.HOST, (0,)), (Why.INPUT, (2,))]


def test_steps_that_were_as_long_before_are_no_change():
    state, random = RankState(0), Random(1)
    for number in range(300):
        state.take(RankLook(0, [Step(number, 30_000 if random.random() < 0.3 else 10_000)], [], 0))
    by_chance = state.surprise(20.0, 292)
    for number in range(300, 330):
        state.take(RankLook(0, [Step(number, 30_000)], [], 0))
    assert by_chance < 10 < 30 < state.surprise(20.0, 300)


def test_more_work_is_accepted_as_it_began_and_not_with_what_came_later():
    pace = Pace()
    for number in range(300):
        pace.feed(number, 10.0 if number < 100 else 15.0 if number < 160 else 25.0)
    pace.accept()
    assert pace.usual_ms == 15.0


def test_a_slow_host_and_a_slow_exchange_are_both_named():
    before = {"own": 20.0, "backward": 30.0}
    slow = evidence(0, before_kinds_ms=before, grew_ms={"own": 15.0, "backward": 15.0}, looks=(2000, 2000))
    other = evidence(1, before_kinds_ms=before, grew_ms={"own": 0.0, "backward": 30.0}, looks=(2000, 2000))
    assert [(one.why, one.ranks) for one in causes_of([slow, other])] == [(Why.HOST, (0,)), (Why.EXCHANGE, (0, 1))]


@pytest.mark.parametrize("first", (0, 1))
def test_memory_that_grows_is_found_whichever_pulses_a_monitor_reads_last(tmp_path, first):
    job, found = Job(Files(tmp_path)), []
    for second in range(60):
        now_ns = START_NS + second * 1_000_000_000
        pulses = [
            replace(pulse(first + 2 * second + at, 30 * (second + 1)), time_ns=now_ns + at * 500_000_000,
                            begun_ns=now_ns, held=(4 << 30) + second * (128 << 20), total=140 << 30)
            for at in range(2)
        ]  # fmt: skip
        found += job.take([RankLook(0, [], pulses, START_NS)], now_ns + 600_000_000)
    assert [one.claim.where for one in found if isinstance(one.claim, MemoryGrows)] == ["gpu"]


def test_who_holds_memory_of_a_gpu_does_not_work_on_it_where_the_driver_reports_use(tmp_path):
    path = tmp_path / "machine.host.jsonl"
    rows = [["r", 1, 0, 10, 0, 0, 0, 0, 0]]
    for second in range(6):
        uses = [[10, 60], [12, 30]] if second > 3 else [[10, 60]]
        held = [[10, 5 << 30], [11, 2 << 30], [12, 1 << 30]]
        rows.append(["G", 1000 * second, 0, 1980, 0, 400.0, 50, 90, 8 << 30, held, uses])
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reader = MachineReader(path)
    reader.look()
    assert reader.strangers(0, 0, 6000) == (12,)
    assert reader.strangers(0, 0, 6000, least=3) == ()


def test_a_fault_in_a_generated_job_is_found_with_its_rank_and_line(tmp_path):
    found, _ = played(tmp_path, Scene(lambda rank, s, _: StepParts(fault=30.0 if rank == 1 and s >= 40 else 0.0)))
    slower = [one for one in found if isinstance(one.claim, Slower)]
    assert [one.claim.kind for one in found] == ["changed", "slower"]
    claim = slower[0].claim
    assert (claim.cause, claim.ranks, claim.text) == ("host", (1,), "check_again(batch)")
    assert (slower[0].seen_ns - START_NS) / 1e9 - 40 <= 10
    assert abs((slower[0].since_ns - START_NS) / 1e9 - 40) <= 1
    assert "rank 1" in claim.message() and "check_again(batch)" in claim.message()


def test_a_healthy_job_that_evaluates_and_saves_is_left_alone(tmp_path):
    def parts(rank: int, second: float, step: int) -> StepParts:
        if second % 20 < 0.05:
            return StepParts(evaluation=1500.0)
        return StepParts(checkpoint=900.0) if rank == 0 and second % 30 < 0.05 else StepParts()

    found, job = played(tmp_path, Scene(parts, seconds=120))
    assert [one for one in found if one.page] == []
    assert job.goodput.seconds["evaluation"] > 3 and job.goodput.seconds["checkpoint"] > 1


def test_a_job_that_stops_is_found(tmp_path):
    found, _ = played(tmp_path, Scene(lambda rank, s, step: StepParts(), seconds=45, stops_s=30))
    assert [type(one.claim) for one in found] == [Stuck]
    assert 8 <= found[0].claim.seconds <= 10


def test_each_claim_has_words():
    for claim in (
        Stuck(ranks=(1,), step=4, seconds=9.0, how="silent"),
        Lags(ranks=(1,), step=4, behind_ms=4.0, percent=30.0),
        *(Slower(ranks=(0,), step=1, cause=why.value, before_ms=1.0, now_ms=2.0, percent=100.0, pids="7",
                 mhz_before=2, mhz_now=1, reason="heat") for why in Why),
    ):  # fmt: skip
        document = Detection(claim=claim, since_ns=1, seen_ns=2).document()
        assert document["message"].startswith(document["headline"]) and "{" not in document["message"]
        json.dumps(document)


def test_metrics_are_served(tmp_path):
    rank = {"rank": 0, "step": 5, "ms": 20.0, "share": {"own": 0.5}}
    state = {"run": 'a"b', "ranks": [rank], "seconds": {"productive": 3.0}, "goodput": 0.5, "windows": 0}
    metrics = Metrics(("127.0.0.1", 0), lambda: state)
    try:
        with urllib.request.urlopen(metrics.url) as answer:
            text = answer.read().decode()
    finally:
        metrics.close()
    assert text == metrics_text(state)
    assert 'traceops_step_seconds{run="a\\"b",rank="0"} 0.02' in text.splitlines()
    with pytest.raises(UsageError):
        address_of("here")


STATE = {
    "run": "mine", "time_ns": START_NS, "began_ns": START_NS - 10**9, "goodput": 0.5, "windows": 0, "slow": True,
    "ranks": [{"rank": rank, "step": 5, "ms": 20.0, "share": {"own": 0.5}} for rank in range(3)],
    "seconds": {"productive": 3.0},
    "events": [{"kind": "slower", "facts": {"cause": "input"}}],
}  # fmt: skip


def test_metrics_reach_a_collector_in_its_own_terms():
    """Read by OpenTelemetry's own messages: each value of the Prometheus text is there, under the same name."""
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    posted = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, json_format.Parse(body, service.ExportMetricsServiceRequest())))
            self.send_response(200)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        otlp = Otlp(f"http://127.0.0.1:{server.server_address[1]}")
        for second in range(12):
            otlp.look(STATE, second)
        otlp.finish(5)
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path, _ in posted] == ["/v1/metrics"] * 2 and otlp.failed == 0
    found = {}
    for metric in posted[0][1].resource_metrics[0].scope_metrics[0].metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        assert metric.HasField("sum") == metric.name.endswith("_total")
        for point in data.data_points:
            labels = ",".join(f'{one.key}="{one.value.string_value}"' for one in point.attributes)
            found[f"{metric.name}{{{labels}}}"] = point.as_double
            assert point.time_unix_nano == START_NS
    lines = [line.rsplit(" ", 1) for line in metrics_text(STATE).splitlines() if not line.startswith("#")]
    assert found == {name: float(value) for name, value in lines}


def test_the_dashboard_asks_for_metrics_that_are_there():
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "live-grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"]]
    names = {name for text in asked for name in re.findall(r"traceops_\w+", text)}
    assert len(names) > 10 and names <= set(outlets._METRICS)


def test_what_was_found_is_shown_and_followed(tmp_path, capsys):
    claim = Slower(ranks=(1,), step=5, cause="input", before_ms=30.0, now_ms=60.0, percent=100.0)
    document = Detection(claim=claim, since_ns=START_NS, seen_ns=START_NS + 10**9).document()
    (tmp_path / "live.events.jsonl").write_text(json.dumps(document) + '\n{"kind": "slow')
    (tmp_path / "live.json").write_text(json.dumps(STATE))
    assert cli(["show", str(tmp_path), "events"]) == 0
    assert document["headline"] in capsys.readouterr().out
    assert cli(["show", str(tmp_path), "events", "--json"]) == 0
    assert [row["facts"]["cause"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["input"]
    with pytest.raises(InputError):
        opened_live(tmp_path / "none")
    server = serve(page_of(str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with urllib.request.urlopen(server.address) as answer:
            page = answer.read().decode()
        with urllib.request.urlopen(server.address.removesuffix("?live")) as answer:
            assert json.load(answer) == STATE
    finally:
        server.shutdown()
        server.server_close()
    assert 'fetch("live.json"' in page


class _Writer:
    """TensorBoard's, as the program has it."""

    def __init__(self, file_writer: object) -> None:
        self.file_writer, self.texts = file_writer, []

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts.append((text, step))


class _Refuses:
    """A tracker that fails."""

    def active_run(self) -> None:
        raise OSError("no route to host")


def test_detections_reach_the_trackers_in_use_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(held_capture, "_EVERY_S", 0.0)
    run = SimpleNamespace(summary={}, rows=[], log=lambda row, commit: run.rows.append((row, commit)))
    for name, module in (
        ("wandb", SimpleNamespace(run=run)), ("mlflow", _Refuses()),
        ("torch.utils.tensorboard.writer", SimpleNamespace(SummaryWriter=_Writer)),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    used, closed = _Writer(object()), _Writer(None)
    detections = held_capture.Detections(tmp_path)
    detections.look()
    lines = [{"page": page, "message": f"page {page}"} for page in (False, True)]
    (tmp_path / "live.events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"pa')
    detections.look()
    detections.look()
    assert run.summary == {"traceops/detected": "page True"} and run.rows == [({"traceops/detections": 1}, False)]
    assert used.texts == [("page True", 2)] and closed.texts == []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))  # loaded, and no run was begun
    held_capture.Detections(tmp_path).look()
    assert len(run.rows) == 1 and len(used.texts) == 2


def test_a_triggered_window_is_held_against_the_latest_one_that_was_healthy(tmp_path, monkeypatch):
    def window(index: int, *steps: int) -> SimpleNamespace:
        return SimpleNamespace(index=index, steps=list(steps), trace=f"window_{index}")

    ranks = [SimpleNamespace(windows=[window(0, 8, 9), window(1, 50, last), window(2, 90, 91)]) for last in (51, 52)]
    monkeypatch.setattr(monitor, "readable_ranks", lambda out: (ranks, []))
    assert monitor.healthy_window(tmp_path, 70, [2]) == 1
    assert monitor.healthy_window(tmp_path, 52, [2]) == 0  # a rank was still in window 1
    assert monitor.healthy_window(tmp_path, 70, [2, 1]) == 0  # window 1 was asked for by an earlier detection
    assert monitor.healthy_window(tmp_path, 9, [2]) is None


def test_what_changed_since_the_healthy_window_leads_the_card():
    healthy, late = (analyze(f"tests/data/{name}", jobs=1) for name in ("ddp4", "late_step4"))
    assert len(monitor.what_changed(healthy, healthy)) == 1
    heading, *reasons = monitor.what_changed(healthy, late)
    assert heading != monitor.what_changed(healthy, healthy)[0] and 1 <= len(reasons) <= 3


def test_a_folder_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        watched_folder(None)
    with pytest.raises(UsageError):
        watched_folder("none")


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("gone"), MemoryError()])
def test_pulses_that_fail_end_alone(tmp_path, monkeypatch, error):
    """Steps are timed on, and the training hears nothing of it."""

    def fails(*arguments: object, **more: object) -> bool:
        raise error

    observer = Observer(tmp_path, 0, live=True)
    assert (tmp_path / "live.bin").stat().st_size
    monkeypatch.setattr("traceops.capture.observing.observer.Pulses.write", fails)
    for _ in range(20):
        observer.step_ended(recorded=False)
        observer.step_begins(recorded=False)
    observer.close()
    assert observer.trouble is None
    look = RankReader(tmp_path, 0).look()
    assert look is not None and len(look.steps) == 20


def test_a_monitor_that_starts_late_passes_over_what_is_long_ago(tmp_path):
    rank = GeneratedRank(tmp_path / "rank_0", 0, Random(1))
    for _ in range(9_000):
        rank.take(StepParts(), 50.0)
    rank.write(START_NS + 450 * 10**9, START_NS)
    reader, job = RankReader(rank.folder, 0), Job(Files(tmp_path))
    looks = []
    for second in range(450, 453):
        looks.append(reader.look())
        job.take([looks[-1]], START_NS + second * 10**9)
    assert looks[0].skipped == (7_000, 7_000 * 50_000) and [look.skipped[0] for look in looks[1:]] == [0, 0]
    assert (looks[0].steps[0].number, looks[0].steps[-1].number) == (7_000, 8_999)
    assert job.goodput.seconds["productive"] == pytest.approx(350, rel=0.05)


def test_a_rank_writes_where_its_thread_is_seen(tmp_path):
    observer = Observer(tmp_path, 3, live=True)
    for _ in range(30):
        time.sleep(0.05)
        observer.step_ended(recorded=False)
        observer.step_begins(recorded=False)
    observer.close()
    pulses = read_pulses(tmp_path / "live.bin")
    assert pulses[-1].steps == 30 and pulses[-1].flags == ENDED and pulses[-1].resident > 1 << 20
    assert sum(pulses[-1].seen_us) > 0 and pulses[-1].looks > 0


def test_lines_of_any_length_are_read_as_they_grow(tmp_path):
    frame = ["f", "step", "/job/train.py", 1, 10, "loss.backward()"]
    lines = [frame, ["s", [0]], ["t", [9, 0, 20] * 80_000], ["t", [10, 0, 20]]]
    whole = "".join(json.dumps(line) + "\n" for line in lines).encode()
    reader, path = LineReader(tmp_path), tmp_path / OBSERVED_FILE
    for end in (30, len(whole) - 5, len(whole)):
        path.write_bytes(whole[:end])
        reader.read()
    assert reader.shares([10]) == ({0: 1.0}, 1)
