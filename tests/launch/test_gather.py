"""`traceops run --gather`: files of other nodes come into the first node's run folder, whole, or stay and are told."""

import http.client
import json
import signal
import socket
import threading
from contextlib import contextmanager
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from ports import free_port

import traceops.launch.session as session
from benchmarks.live.generated import START_NS, GeneratedRank, StepParts, write_host
from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, write_rank
from traceops.core.errors import UsageError
from traceops.core.live_pulses import CLOSER, SLOTS
from traceops.launch import ended
from traceops.launch.display import Screen
from traceops.launch.gather import gathering
from traceops.launch.gather.gathering import Collector, Sender, digest_of
from traceops.launch.gather.meeting import Meeting, files_to_send, may_travel, meeting_of
from traceops.launch.gather.relay import LiveFiles, Refused, Unreachable
from traceops.launch.plan import Cluster, Plan
from traceops.launch.process import TorchrunResult

RUN = "mine of 4 ranks"


def node_folder(folder, ranks, trace=b"\x1f\x8b trace"):
    """What a launcher has captured of its ranks."""
    for rank in ranks:
        write_rank(
            folder,
            RankManifest(rank, rank % 2, 4, f"n{rank // 2}", 1, {"type": "cpu"}, {}, {}, traces=[f"rank_{rank}/a"]),
        )
        (folder / f"rank_{rank}" / "a.pt.trace.json.gz").write_bytes(trace + bytes([rank]) * 100_000)
        (folder / f"rank_{rank}" / ".a.part").touch()
    for name in ("logs/rank_9.stderr.log", "evidence/x y/ü.txt", "machine.n.jsonl", "run.json", "other.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of {ranks}")
    return folder


@contextmanager
def collecting(folder):
    collector = Collector(folder, RUN, "127.0.0.1", free_port())
    try:
        yield collector
    finally:
        collector.close()


def port_of(collector):
    return collector._server.server_address[1]


def sender_to(collector, run=RUN, node="n1"):
    return Sender(Meeting("127.0.0.1", port_of(collector), False), run, node, lambda: False)


def test_files_of_another_node_are_in_one_folder_and_the_first_nodes_own_stay(tmp_path):
    first, other = node_folder(tmp_path / "0", [0, 1]), node_folder(tmp_path / "1", [2, 3])
    names = files_to_send(other, summaries_only=False)
    assert names[-2:] == ["rank_2/manifest.json", "rank_3/manifest.json"], "a rank's manifest says that it is all there"
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with collecting(first) as collector:
        for _ in range(2):  # a second time nothing is doubled
            sent = sender_to(collector).send(other, names)
            assert (sent.files, sent.left, sent.folder) == (len(names), {}, str(first))
        assert collector.wait(1, lambda: False) == {"n1"}
        assert collector.taken == (len(names), sum((other / name).stat().st_size for name in names))
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (first / "machine-n1.jsonl").exists() is False and (first / "machine.n-n1.jsonl").is_file()
    assert digest_of(first / "rank_3/a.pt.trace.json.gz") == digest_of(other / "rank_3/a.pt.trace.json.gz")
    new = {path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file() and path not in before}
    assert not [name for name in new if Path(name).name.startswith(".")], "no marker and no part is left"
    assert {"rank_2/manifest.json", "rank_3/manifest.json"} < new


@pytest.mark.parametrize(
    "name",
    [
     "../x", "/etc/x", "rank_0/../../x", "rank_0/.hidden", "rank_0//x", "rank_x/a", "run.json", "logs/a\\b",
     "logs/a\nb", "rank_1", "", "evidence/./x"],
)  # fmt: skip
def test_only_files_of_a_run_travel(tmp_path, name):
    assert not may_travel(name)
    (tmp_path / "out").mkdir()
    with collecting(tmp_path / "out") as collector:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(collector))
        path = "/" + name.replace("\n", "%0A").replace("\\", "%5C")
        connection.request("PUT", path, b"x", {"X-Run": RUN.replace(" ", "%20"), "X-Node": "n1"})
        assert connection.getresponse().status == 400
        connection.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_damaged_and_other_content_is_not_kept(tmp_path):
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "t").write_bytes(b"mine")
    with collecting(tmp_path) as collector:
        with pytest.raises(Refused, match="damaged or cut short"):
            collector.store("rank_2/t", "n1", 5, "0" * 64, BytesIO(b"abcde"))
        digest = digest_of(tmp_path / "rank_0" / "t")
        with pytest.raises(Refused, match="cut short"):  # the node died while it sent
            collector.store("rank_2/t", "n1", 9, digest, BytesIO(b"min"))
        assert collector.store("rank_0/t", "n1", 4, digest, BytesIO(b"mine")) is HTTPStatus.OK
        (tmp_path / "rank_0" / "t").write_bytes(b"changed")
        with pytest.raises(Refused, match="is there already, and differs"):
            collector.store("rank_0/t", "n1", 4, digest, BytesIO(b"mine"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["t"]


def test_a_file_that_fails_hinders_no_other(tmp_path):
    first, other = tmp_path / "0", node_folder(tmp_path / "1", [2])
    (first / "rank_2").mkdir(parents=True)
    (first / "rank_2" / "a.pt.trace.json.gz").write_bytes(b"of another run")
    with collecting(first) as collector:
        names = files_to_send(other, summaries_only=False)
        sent = sender_to(collector).send(other, [*names, "logs/gone"])
        assert set(sent.left) == {"rank_2/a.pt.trace.json.gz", "logs/gone"}
        assert "differs" in sent.left["rank_2/a.pt.trace.json.gz"]
        assert collector.wait(1, lambda: False, silent_s=0) == set(), "it is not done"
    assert (first / "rank_2" / "manifest.json").is_file()


def test_who_shares_the_folder_sends_nothing_and_another_run_gets_nothing(tmp_path):
    folder = node_folder(tmp_path, [0, 1, 2])
    with collecting(folder) as collector:
        sent = sender_to(collector).send(folder, files_to_send(folder, summaries_only=False))
        assert (sent.shared, sent.files) == (True, 0)
        assert collector.wait(1, lambda: False) == {"n1"}
        with pytest.raises(Unreachable, match="here is the run mine of 4 ranks"):
            sender_to(collector, run="yours of 4 ranks").coming()
    with pytest.raises(Unreachable, match="refused"):
        Sender(Meeting("127.0.0.1", free_port(), False), RUN, "n1", lambda: False).coming(0)


def test_who_does_not_know_the_secret_is_told_and_changes_nothing(tmp_path):
    """A stranger's `done` ended the waiting, and a stranger's file was kept."""
    first, other = node_folder(tmp_path / "0", [0]), node_folder(tmp_path / "1", [2])
    names = files_to_send(other, summaries_only=False)
    collector = Collector(first, RUN, "127.0.0.1", free_port(), secret="of this run")
    try:
        meeting = Meeting("127.0.0.1", port_of(collector), False)
        for guess in ("", "another"):
            stranger = Sender(meeting, RUN, "n1", lambda: False, secret=guess)
            for attempt in (
                stranger.coming,
                lambda one=stranger: one.send(other, names),
                lambda one=stranger: one.announce("still"),
            ):
                with pytest.raises(Unreachable, match="TRACEOPS_GATHER_SECRET is not the same"):
                    attempt()
            with pytest.raises(Unreachable) as refused:
                stranger._put(other, names[0])
            assert str(first) not in str(refused.value)
        assert collector.taken == (0, 0) and collector.still == 0 and not (first / "rank_2").exists()
        assert collector.wait(1, lambda: False, silent_s=0) == set()
        sent = Sender(meeting, RUN, "n1", lambda: False, secret="of this run").send(other, names)
        assert (sent.files, sent.left) == (len(names), {}) and collector.wait(1, lambda: False) == {"n1"}
    finally:
        collector.close()


def test_summaries_stand_for_traces(tmp_path):
    folder = node_folder(tmp_path, [2, 3])
    (folder / "rank_2" / "a.summary.msgpack.gz").touch()
    names = files_to_send(folder, summaries_only=True)
    assert "rank_2/a.summary.msgpack.gz" in names and "rank_2/a.pt.trace.json.gz" not in names
    assert "rank_3/a.pt.trace.json.gz" in names, "it has none"


@pytest.mark.parametrize(
    ("cluster", "port", "meeting"),
    [(Cluster(2, 2, 1, master_addr="n0", master_port=29_500), None, Meeting("n0", 19_500, False)),
     (Cluster(2, 2, 0, master_addr="n0", master_port=20_712), None, Meeting("n0", 10_712, True)),
     (Cluster(2, 2, 0, master_addr="n0", master_port=5_000), None, Meeting("n0", 15_000, True)),
     (Cluster(2, 2, rdzv_endpoint="n0:29400"), 7, Meeting("n0", 7, None)),
     (Cluster(2, 2, rdzv_endpoint="n0"), None, Meeting("n0", 19_400, None)),
     (Cluster(2, 2, rdzv_endpoint="[::1]:30000"), None, Meeting("::1", 20_000, None))],
)  # fmt: skip
def test_nodes_meet_beside_their_rendezvous(cluster, port, meeting):
    assert meeting_of(cluster, port) == meeting


def test_a_meeting_without_a_place_is_refused():
    with pytest.raises(UsageError, match="needs the host"):
        meeting_of(Cluster(2, 2, rdzv_endpoint=":29400"), None)
    with pytest.raises(UsageError, match="70000"):
        meeting_of(Cluster(2, 2, 0, master_addr="a"), 70_000)


def plan_of(out, node, port, **more):
    cluster = Cluster(2, 2, node, master_addr="127.0.0.1", master_port=29_500)
    return Plan("mine", out, cluster, ["train.py"], {}, {}, gather=True, gather_port=port, **more)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(Screen, "say", lambda self, text: lines.append(text))
    return lines


@pytest.fixture
def launched(monkeypatch):
    """The launcher around a training that a function plays."""
    handlers = {number: signal.getsignal(number) for number in (1, 2, 3, 15)}
    monkeypatch.setattr(ended, "git_state", lambda folder: None)
    monkeypatch.setattr(ended, "software_versions", dict)
    monkeypatch.setattr(session, "FabricEvidence", lambda *args, **options: None)

    def launch(plan, training):
        monkeypatch.setattr(session, "run", training)
        return session.launch(plan)

    yield launch
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_first_nodes_run_json_has_the_ranks_of_all(tmp_path, launched, said):
    first, other, port = tmp_path / "0", node_folder(tmp_path / "1", [2, 3]), free_port()
    sending = []

    def training(*args, **options):
        node_folder(first, [0, 1])
        second = gathering.Gathering(plan_of(other, 1, port), Screen(), [])
        second.ended(by_signal=False)
        sending.append(threading.Thread(target=second.send))
        sending[0].start()
        return TorchrunResult(0, None, "")

    assert launched(plan_of(first, 0, port), training) == 0
    sending[0].join()  # what it says is of this test, not of the next
    run = json.loads((first / "run.json").read_text())
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1, 2, 3] and run["ranks_missing"] == []
    assert any(line.startswith("gathered 7 files (0.2 MB)") for line in said), said


def test_a_first_node_that_is_gone_leaves_the_files_where_they_are(tmp_path, monkeypatch, said):
    monkeypatch.setattr(gathering, "REACH_S", 0)
    out = node_folder(tmp_path / "1", [2, 3])
    before = sorted(out.rglob("*"))
    second = gathering.Gathering(plan_of(out, 1, free_port()), Screen(), [])
    second.ended(by_signal=False)
    second.send()
    assert sorted(out.rglob("*")) == before
    assert len(said) == 1 and f"They stay here. To copy them: rsync -a {host()}:{out}/ 127.0.0.1:{out}/" in said[0], (
        said
    )


def test_a_node_that_sends_nothing_is_told_and_the_next_signal_ends_the_waiting(tmp_path, said):
    received = [signal.SIGTERM]

    class Again(list):
        def __len__(self):  # as if the user pressed Ctrl-C once more while it waits
            self.append(signal.SIGINT)
            return super().__len__()

    first = gathering.Gathering(plan_of(tmp_path, 0, free_port()), Screen(), Again(received))
    first.ended(by_signal=True)
    assert first.first and "1 of 1 other node did not send all files" in said[0]
    assert list(tmp_path.iterdir()) == []


def test_the_endpoints_host_is_the_first_and_a_first_node_need_not_have_its_own_address(tmp_path, monkeypatch):
    elsewhere = Cluster(2, 2, rdzv_endpoint="192.0.2.1:29400")
    plan = Plan("mine", tmp_path, elsewhere, ["t.py"], {}, {}, gather=True, gather_port=free_port())
    assert not gathering.Gathering(plan, Screen(), []).first

    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    for address in ("192.0.2.1", "train-master-0"):  # of a service
        if address.isidentifier() or "-" in address:
            monkeypatch.setattr(socket, "getaddrinfo", unknown)
        Collector(tmp_path, RUN, address, free_port(), anywhere=True).close()


@pytest.mark.parametrize(
    "name, place, bound",
    [
        ("node-0", "127.0.1.1", "0.0.0.0"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.2"),
    ],
)
def test_a_node_that_has_itself_as_loopback_in_its_hosts_is_reached_by_others(
    tmp_path, monkeypatch, name, place, bound
):
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: known)
    collector = Collector(tmp_path, RUN, name, free_port())
    try:
        assert collector._server.server_address[0] == bound
    finally:
        collector.close()


def test_of_two_launchers_at_the_endpoints_host_one_is_the_first(tmp_path):
    port, plans = free_port(), []
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        cluster = Cluster(2, 2, rdzv_endpoint="127.0.0.1:29400")
        plans.append(Plan("mine", tmp_path / name, cluster, ["t.py"], {}, {}, gather=True, gather_port=port))
    one, two = (gathering.Gathering(plan, Screen(), []) for plan in plans)
    assert (one.first, two.first) == (True, False)
    one._collector.close()


def test_a_first_node_that_is_late_is_waited_for(tmp_path):
    folder, port = node_folder(tmp_path / "0", [0]), free_port()
    refused = threading.Event()

    class RefusedSender(Sender):
        def _ask(self, *arguments):
            try:
                return super()._ask(*arguments)
            except OSError:
                refused.set()
                raise

    sender = RefusedSender(Meeting("127.0.0.1", port, False), RUN, "n1", lambda: False)
    reaching = threading.Thread(target=sender.coming)
    reaching.start()
    assert refused.wait(60)
    collector = Collector(folder, RUN, "127.0.0.1", port)
    reaching.join(60)
    assert collector._seen.coming == {"n1"}
    sender.close()
    collector.close()


def test_nodes_that_share_a_name_keep_their_own_ranks(tmp_path, launched, said):
    """Containers may all be called alike: whose ranks are whose is told by the number of the node."""
    out = node_folder(tmp_path, [])
    cluster = Cluster(2, 2, 1, master_addr="127.0.0.1")

    def training(*arguments, **options):
        for rank in range(4):
            write_rank(out, RankManifest(rank, rank % 2, 4, host(), 1, {"type": "cpu"}, {}, {}, traces=["t"]))
        for folder in (out / "rank_0", out / "rank_2"):
            (folder / ".t.part").touch()
        for local in range(2):
            log = options["logs"] / "none" / "attempt_0" / str(local) / "stderr.log"
            log.parent.mkdir(parents=True)
            log.write_text(f"local rank {local}")
        return TorchrunResult(0, None, "")

    assert launched(Plan("mine", out, cluster, ["t.py"], {}, {}), training) == 0
    logs = {path.name: path.read_text() for path in (out / "logs").glob("rank_?.*.log") if "9" not in path.name}
    assert logs == {"rank_2.stderr.log": "local rank 0", "rank_3.stderr.log": "local rank 1"}
    assert (out / "rank_0" / ".t.part").exists(), "another node may just be writing it"
    assert not (out / "rank_2" / ".t.part").exists()


def test_a_node_that_is_missing_is_told_with_what_would_bring_it(tmp_path, launched, said):
    cluster = Cluster(2, 2, 0, master_addr="127.0.0.1")

    def training(*arguments, **options):
        node_folder(tmp_path, [0, 1])
        return TorchrunResult(0, None, "")

    assert launched(Plan("mine", tmp_path, cluster, ["t.py"], {}, {}), training) == 0
    assert any(line.startswith("2 ranks left nothing in this folder") and "--gather" in line for line in said)
    assert json.loads((tmp_path / "run.json").read_text())["ranks_missing"] == [2, 3]


def test_a_hang_is_one_of_all_nodes_where_they_share_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "_ASK_EVERY_S", 0.0)
    port = free_port()
    first, second = tmp_path / "0", tmp_path / "1"
    first.mkdir(), second.mkdir()
    one, two = (gathering.Gathering(plan_of(path, n, port), Screen(), []) for n, path in enumerate((first, second)))
    assert not one.all_still(True), "the second moves"
    assert two.all_still(True) and one.all_still(True)
    assert not two.all_still(False) and not one.all_still(True), "it moves again"
    assert two.all_still(True) and one.all_still(True)
    assert not one.all_still(False) and not two.all_still(True)
    one._collector.close()
    assert not two.all_still(True), "nobody to ask: nothing is ended"


def same_files(first, other, but=()):
    names = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()} - {CLOSER, *but}
    assert names and all((first / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_what_ranks_write_for_a_monitor_reaches_the_first_node_as_it_grows(tmp_path):
    """Two nodes that share no folder had no monitor that saw both."""
    first, other = node_folder(tmp_path / "0", [0]), tmp_path / "1"
    random, own = Random(1), other / "rank_2"
    with collecting(first) as collector:
        sender = sender_to(collector)
        relay = sender.relay(other)
        rank = GeneratedRank(own, 2, random)
        for pulses in (1, 3, SLOTS + 5):  # the ring goes round
            for second in range(pulses):
                rank.take(StepParts(), 40.0)
                rank.write(START_NS + second, START_NS)
            write_host(other, [rank], START_NS)
            relay.look()
            same_files(first, other)
        (first / CLOSER).touch()
        relay.look()
        assert (other / CLOSER).exists()
        GeneratedRank(own, 2, random).write(START_NS, START_NS)  # a process that was started again
        (own / "observed.jsonl").write_bytes(b"")
        relay.look()
        same_files(first, other, but={"rank_2/live.bin"})  # of a ring the latest pulses count
        rank.take(StepParts(), 40.0)
        rank.write(START_NS, START_NS)
        assert sender.send(other, files_to_send(other, summaries_only=False)).left == {}
        same_files(first, other)


def test_a_monitor_that_lost_a_file_gets_it_from_where_it_ends(tmp_path):
    first, other = tmp_path / "0", tmp_path / "1"
    first.mkdir()
    with collecting(first) as collector:
        relay = sender_to(collector).relay(other)
        rank = GeneratedRank(other / "rank_2", 2, Random(1))
        relay.look()
        (first / "rank_2" / "steps.bin").write_bytes(b"")
        rank.take(StepParts(), 40.0)
        rank.write(START_NS, START_NS)
        relay.look()
        relay.look()
        same_files(first, other)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rank_0/steps.bin", "is there already"), ("rank_3/../run.json", "not written"), ("run.json", "not written"),
        ("/etc/machine.a.jsonl", "not written"), ("rank_1/a.pt.trace.json", "not written"),
    ],
)  # fmt: skip
def test_a_node_writes_nothing_that_is_not_its_own(tmp_path, name, why):
    folder = node_folder(tmp_path, [0])
    (folder / "rank_0" / "steps.bin").write_bytes(b"mine")
    with pytest.raises(Refused, match=why):
        LiveFiles(folder).take("n1", json.dumps([[name, 0, 3]]).encode() + b"\nabc")
    assert (folder / "rank_0" / "steps.bin").read_bytes() == b"mine"


def test_hosts_of_one_name_keep_their_own_logs(tmp_path):
    folder = node_folder(tmp_path, [0])
    files = LiveFiles(folder)
    for piece in (b"ab", b"cd"):
        offset = 0 if piece == b"ab" else 2
        files.take("n1", json.dumps([["machine.n.jsonl", offset, 2]]).encode() + b"\n" + piece)
    assert (folder / "machine.n.jsonl").read_text() == "machine.n.jsonl of [0]"
    assert (folder / "machine.n-n1.jsonl").read_bytes() == b"abcd"
