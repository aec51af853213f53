"""Runs of several hosts: a row a host, and communication inside a host apart from that between hosts."""

import json
import shutil
from pathlib import Path

import pytest

from traceops.pipeline.analyze import analyze
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.render.writers.csv import render_csv_files
from traceops.render.writers.terminal import write_terminal

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """A recorded run on a 2×2 mesh, as if ranks 0 and 1 had been on one node and 2 and 3 on another."""
    folder = tmp_path_factory.mktemp("hsdp")
    for path in (DATA / "slow_hsdp4").glob("*.json*"):
        shutil.copy(path, folder / path.name)
    run = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {"world_size": 4}
    told = {entry["rank"]: entry for entry in run.get("ranks", [])}
    run["hosts"] = ["node-0", "node-1"]
    run["ranks"] = [{**told.get(rank, {}), "rank": rank, "host": f"node-{rank // 2}"} for rank in range(4)]
    (folder / "run.json").write_text(json.dumps(run))
    return analyze(folder)


def test_a_row_a_host_adds_up_to_what_its_ranks_do(two_hosts):
    rows, ranks = two_hosts.hosts, {row.rank: row for row in two_hosts.ranks}
    assert [(row.host, row.ranks) for row in rows] == [("node-0", (0, 1)), ("node-1", (2, 3))]
    for row in rows:
        own = [ranks[rank] for rank in row.ranks]
        for name in ("compute_ms", "comm_wait_ms", "idle_host_ms"):
            assert getattr(row, name) == pytest.approx(sum(getattr(one, name) for one in own) / 2, abs=1e-5)
        assert row.late_share == pytest.approx(sum(one.late_share for one in own), abs=1e-5)
        whole = sum(one.transfer_ms for one in own) / 2, sum(one.wait_ms for one in own) / 2
        split = (row.inside_transfer_ms + row.between_transfer_ms, row.inside_wait_ms + row.between_wait_ms)
        assert split == pytest.approx(whole, rel=1e-4), "all of it lies inside or between"
        assert row.inside_transfer_ms > 0 and row.between_transfer_ms > 0
        assert row.inside_busbw_gbs and row.between_busbw_gbs


def test_hosts_are_in_page_terminal_and_csv(two_hosts, tmp_path, capsys):
    import sys

    write_terminal(describe_summary(two_hosts, tmp_path, verbose=True), sys.stdout)
    shown = capsys.readouterr().out
    assert "4 ranks on 2 hosts" in shown and "node-1  2–3" in shown
    assert "hosts" in [section.id for section in describe(two_hosts).sections]
    lines = render_csv_files(two_hosts)["hosts.csv"].splitlines()
    assert lines[0].startswith("host,ranks,step_ms,") and lines[2].startswith("node-1,2 3,")


def test_one_host_has_no_table_of_hosts():
    report = analyze(DATA / "starved_loader2")
    assert not report.hosts and "hosts.csv" not in render_csv_files(report)
    assert "hosts" not in [section.id for section in describe(report).sections]
