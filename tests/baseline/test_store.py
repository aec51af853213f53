"""The store as jobs use it: nothing is lost or half there, whoever else writes, and nothing foreign is touched."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from dataclasses import astuple
from pathlib import Path

import pytest
from changed import replace
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs
from sample_captures import DAY_NS, RUN, START_NS, capture, commit_of, run_of

from traceops.baseline import place
from traceops.baseline.entry import NAME, SLUG, UNKNOWN, Key, key_of, load
from traceops.baseline.store import DAY_NS as STORE_DAY_NS
from traceops.baseline.store import (
    Problem,
    baseline_entries,
    chosen_store,
    entries,
    find,
    find_like,
    remove,
    save,
    scan,
    to_prune,
)
from traceops.core.errors import InputError, TraceopsError, UsageError
from traceops.report.document import report_of
from traceops.report.rows import Run

GPT = "gpt-l8-d1024-s512-b8"


@pytest.fixture(params=["folder", "file://", "memory://"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is not there yet."""
    folder = str(tmp_path / "some store")
    return {"folder": folder, "file://": f"file://{folder}"}.get(request.param, f"memory://{uuid.uuid4()}/deep")


def days(found: list) -> list[int]:
    """The days on which these were captured."""
    return [(entry.started_ns - START_NS) // DAY_NS for entry in found]


def test_what_is_saved_is_found_in_time_order_with_its_report(store: str) -> None:
    for day in (3, 0, 2, 1):
        saved = save(store, capture(day, 50.0 + day), source=f"profile/{day}")
    assert (saved.commit, saved.branch, saved.dirty) == (commit_of(1), "main", False)
    found = entries(store)
    assert days(found) == [0, 1, 2, 3]
    assert [entry.source for entry in found] == [f"profile/{day}" for day in range(4)]
    assert [stored.content for stored in scan(store)] == [capture(day, 50.0 + day) for day in range(4)]
    newest = find(store, GPT, last=2)
    assert days(newest) == [2, 3]
    assert load(newest[1].url).content == capture(3, 53.0)
    folder, name = newest[1].name.split("/")
    assert folder == key_of(run_of(capture())).slug and NAME.fullmatch(name) and commit_of(3)[:8] in name


def test_a_report_is_kept_with_what_this_version_does_not_know(store: str) -> None:
    later = {**capture(), "later": {"key": 1}}
    entry = save(store, later)
    assert load(entry.url).content == later
    assert entry.capture().report == report_of(later, "")


def test_a_store_that_is_not_there_is_empty(store: str) -> None:
    assert entries(store) == [] and find_like(store, run_of(capture())) == []
    with pytest.raises(InputError, match=r"it is empty.*traceops baseline save"):
        find(store, GPT, last=1)


def test_what_the_run_does_not_say_can_be_given(store: str) -> None:
    unknown = capture(git=None, started_ns=None)
    saved = save(store, unknown, branch="topic/x", name="my model", commit="ABCDEF1234")
    assert (saved.commit, saved.branch, saved.dirty, saved.started_ns) == (
        "ABCDEF1234", "topic/x", None, None,
    )  # fmt: skip
    assert abs(saved.time_ns - time.time_ns()) < 60 * 10**9
    assert find(store, "my model", last=1) == [saved]
    assert "abcdef12" in saved.name and save(store, unknown).name.count("-unknown-") == 1


def test_like_head_on_main_or_else_master_and_never_head_itself(store: str) -> None:
    head = run_of(capture(9, git={"commit": commit_of(9), "branch": "topic"}))
    save(store, capture(1), branch="master")
    assert days(find_like(store, head)) == [1]
    for day in (2, 3, 9):
        save(store, capture(day), branch="main")
    save(store, capture(4), branch="topic")
    save(store, capture(5, world_size=8, hosts=["a", "b"]), branch="main")
    save(store, capture(6), branch="main", name="other")
    assert days(find_like(store, head, last=5)) == [2, 3]
    assert days(find_like(store, head, "topic", last=5)) == [4]
    assert find_like(store, head, "release", last=5) == []


def test_a_name_of_several_keys_or_of_none_is_an_error_that_lists_them(store: str) -> None:
    for branch in ("main", "topic"):
        save(store, capture(), branch=branch)
    with pytest.raises(UsageError, match=r"matches 2 keys.*_main-.*_topic-"):
        find(store, GPT, last=1)
    with pytest.raises(InputError, match=r"'gtp'.*it holds gpt-l8"):
        find(store, "gtp", last=1)
    assert [entry.branch for entry in find(store, "topic", last=1)] == ["topic"]


def test_baselines_of_a_comparison_by_name_or_by_what_head_is(store: str) -> None:
    head = run_of(capture(9))
    with pytest.raises(InputError, match=r"no baseline of main or master like gpt-l8.*traceops baseline save"):
        baseline_entries("auto", store, last=3, like=head)
    for day in range(3):
        for branch in ("main", "topic"):
            save(store, capture(day), branch=branch, name="gpt")
            save(store, capture(day + 10, world_size=8, hosts=["a", "b"]), branch=branch, name="gpt")
            save(store, capture(day + 20), branch=branch)
    assert days(baseline_entries("gpt", store, last=2, like=head)) == [1, 2]
    assert days(baseline_entries("auto", store, last=2, like=head)) == [21, 22]
    (on_topic,) = baseline_entries("auto@topic", store, last=1, like=head)
    assert (on_topic.branch, load(on_topic.url).content) == ("topic", capture(22))
    assert days(baseline_entries("auto", store, last=2, like=run_of(capture(22)))) == [20, 21]
    with pytest.raises(UsageError, match="matches 4 keys"):
        baseline_entries("gpt", store, last=2)
    with pytest.raises(UsageError, match="matches 4 keys"):
        baseline_entries("gpt", store, last=2, like=structs.replace(head, world_size=16))
    with pytest.raises(UsageError, match="baseline:NAME"):
        baseline_entries("auto", store, last=2)


def test_what_is_no_whole_entry_is_named_and_neither_used_nor_pruned(tmp_path: Path) -> None:
    good = [save(str(tmp_path), capture(day)) for day in range(3)]
    folder = Path(good[0].url).parent
    whole = Path(good[0].url).read_bytes()
    name = Path(good[0].url).name

    def entry(change: dict) -> bytes:
        return gzip.compress(json.dumps({**json.loads(gzip.decompress(whole)), **change}).encode())

    odd = {
        "README.md": b"hello",
        f"{folder.name}/notes.txt": b"hello",
        f"{folder.name}/{name.replace('-', '-0')}": b"no entry by its name",
        f"{folder.name}/20990101T000000.000Z-unknown-000000000000.json.gz": whole[:200],
        f"{folder.name}/20990101T000000.000Z-unknown-000000000001.json.gz": b"",
        f"{folder.name}/20990101T000000.000Z-unknown-000000000002.json.gz": gzip.compress(b"[1, 2"),
        f"{folder.name}/20990101T000000.000Z-unknown-000000000003.json.gz": gzip.compress(b"{}"),
        f"{folder.name}/20990101T000000.000Z-unknown-000000000004.json.gz": entry({"version": 2}),
        f"{folder.name}/20990101T000000.000Z-unknown-000000000005.json.gz": entry({"report": None}),
        f"{folder.name}/20990101T000000.000Z-unknown-000000000006.json.gz": entry({"saved_ns": "now"}),
        f"{folder.name}/20990101T000000.000Z-unknown-000000000007.json.gz": gzip.compress(b"[" * 10**6),
        f"x_main-{'0' * 12}/{name}": whole,
        f"other folder/{name}": whole,
    }
    for path, content in odd.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    fresh, left = (folder / f".{n}{place.PARTIAL}" for n in ("fresh", "left"))
    for path in (fresh, left):
        path.write_bytes(whole[:50])
    os.utime(left, (0, 0))

    problems: list[Problem] = []
    assert entries(str(tmp_path), None, problems) == good
    named = {problem.url.removeprefix(f"{tmp_path}/") for problem in problems}
    expected = {path for path in odd if not path.startswith("other folder")}
    assert named == expected | {"other folder", f"{folder.name}/{left.name}"}
    assert all(problem.what for problem in problems)
    assert days(find(str(tmp_path), GPT, last=2)) == [1, 2]

    remove(to_prune(entries(str(tmp_path)), keep=1, now_ns=time.time_ns()))
    assert days(entries(str(tmp_path))) == [2]
    assert all((tmp_path / path).exists() for path in odd) and left.exists() and fresh.exists()


def test_what_may_be_pruned(store: str) -> None:
    for day in range(4):
        save(store, capture(day))
    save(store, capture(1), branch="topic")
    found, now = entries(store), START_NS + 4 * STORE_DAY_NS
    assert days(to_prune(found, keep=2, now_ns=now)) == [0, 1]
    assert days(to_prune(found, keep=1, older_than_days=2.5, now_ns=now)) == [0, 1]
    assert to_prune(found, keep=9, now_ns=now) == []
    with pytest.raises(UsageError, match="--keep N, --older-than DAYS"):
        to_prune(found, now_ns=now)
    for wrong in (0, -1):
        with pytest.raises(UsageError, match="would delete everything"):
            to_prune(found, keep=wrong, now_ns=now)
    with pytest.raises(UsageError, match=r"every entry of .*_topic-.*--keep 1"):
        to_prune(found, older_than_days=2.5, now_ns=now)
    on_main = [entry for entry in found if entry.branch == "main"]
    assert days(to_prune(on_main, older_than_days=2.5, now_ns=now)) == [0, 1]
    assert remove(on_main[:2]) == 2 and remove(on_main[:2]) == 0
    assert days(entries(store, "main")) == [2, 3]


def test_an_entry_that_was_pruned_meanwhile_says_so(store: str) -> None:
    entry = save(store, capture())
    remove([entry])
    with pytest.raises(InputError, match="is gone"):
        entry.capture()


def _save_some(store: str, first: int) -> None:
    for day in range(first, 40, 4):
        save(store, capture(day))


def _prune_on(store: str, stop) -> None:
    while not stop.is_set():
        problems: list[Problem] = []
        remove(to_prune(entries(store, None, problems), keep=5, now_ns=time.time_ns()))
        assert problems == []


def test_jobs_save_and_prune_at_once_and_the_newest_stay(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    stop = context.Event()
    pruning = [context.Process(target=_prune_on, args=(str(tmp_path), stop)) for _ in range(2)]
    saving = [context.Process(target=_save_some, args=(str(tmp_path), first)) for first in range(4)]
    for process in (*pruning, *saving):
        process.start()
    for process in saving:
        process.join()
    stop.set()
    for process in pruning:
        process.join()
    assert [process.exitcode for process in (*pruning, *saving)] == [0] * 6
    problems: list[Problem] = []
    found = entries(str(tmp_path), None, problems)
    assert days(found)[-5:] == [35, 36, 37, 38, 39] and problems == []
    assert not [path for path in tmp_path.rglob("*") if place.PARTIAL in path.name]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place.os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left.*--store"):
        save(str(tmp_path), capture())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for action in (lambda url: save(url, capture()), entries):
        with pytest.raises(TraceopsError, match="--store"):
            action(str(tmp_path / "file"))


def test_a_folder_needs_no_fsspec_and_a_url_says_what_it_needs(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["fsspec"] = None
sys.path.insert(0, sys.argv[2])
from sample_captures import capture
from traceops.baseline.store import entries, save
from traceops.core.errors import InputError
save(sys.argv[1], capture())
assert len(entries("file://" + sys.argv[1])) == 1
try:
    entries("s3://bucket/baselines")
except InputError as error:
    print(error)
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store"), str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install fsspec" in done.stdout


def test_the_store_is_asked_for_set_or_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEOPS_BASELINES", raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert chosen_store() == "baselines"
    (tmp_path / "traceops.toml").write_text('baselines = "kept"\n')
    assert chosen_store() == str(tmp_path / "kept")
    (tmp_path / "traceops.toml").write_text('baselines = "s3://bucket/kept"\n')
    assert chosen_store() == "s3://bucket/kept"
    monkeypatch.setenv("TRACEOPS_BASELINES", "gs://other")
    assert chosen_store() == "gs://other"
    assert chosen_store("here") == "here"


WORDS = st.builds(Key, *[st.text(max_size=80)] * 7)


def test_the_key_says_what_times_depend_on() -> None:
    key = key_of(run_of(capture()))
    assert astuple(key) == (
        "gpt-l8-d1024-s512-b8", "4", "NVIDIA H100 80GB HBM3", "1x4", "pytorch_fsdp2", "bf16", "main",
    )  # fmt: skip
    assert key.text.startswith("gpt-l8-d1024-s512-b8 · 4 ranks · NVIDIA H100 80GB HBM3 · 1x4")


def test_the_slug_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert key_of(run_of(capture())).slug == (
        "gpt-l8-d1024-s512-b8_w4_nvidia-h100-80gb-hbm3_1x4_pytorch-fsdp2_bf16_main-9bdba130403a"
    )


@given(WORDS, WORDS)
@example(Key("a", "b", "c", "d", "e", "f", "feature/x"), Key("a", "b", "c", "d", "e", "f", "feature-x"))
@example(Key("a", "b", "c", "d", "e", "f", "Main"), Key("a", "b", "c", "d", "e", "f", "main"))
@example(Key("../..", "", ".", "~", "\0", "\ud800", "é"), Key("..", "..", ".", "~", "\0", "\ud800", "é"))
def test_slugs_are_safe_names_of_their_own(one: Key, other: Key) -> None:
    for key in (one, other):
        assert SLUG.fullmatch(key.slug) and len(key.slug) <= 240
        assert key.matches(key.slug)
    assert (one.slug == other.slug) == (one == other)


@pytest.mark.parametrize(
    ("hosts", "world", "topology"),
    [(["a", "b"], 16, "2x8"), (["a"], 1, "1x1"), (["a", "b"], 5, "2x?"), ([], 4, UNKNOWN), (["a"], None, UNKNOWN)],
)
def test_topology(hosts: list[str], world: int | None, topology: str) -> None:
    assert key_of(Run(hosts=tuple(hosts), world_size=world)).topology == topology


@pytest.mark.parametrize("training", [None, {}, {"config": []}, {"config": 3}, {"layers": -1, "batch_size": True}])
def test_what_a_run_does_not_say_is_unknown(training: dict[str, object] | None) -> None:
    key = key_of(Run(training=training, git=None))
    assert set(astuple(key)) == {UNKNOWN}


def test_a_training_may_say_it_without_a_config_and_accumulate() -> None:
    key = key_of(Run(training={"model_name": "llama", "dtype": "fp8", "batch_size": 2, "grad_accum": 4}))
    assert (key.model, key.precision) == ("llama-b2-a4", "fp8")


def test_branch_and_name_replace_what_the_run_says() -> None:
    run = run_of(capture())
    assert key_of(run, branch="topic", name="my run") == replace(key_of(run), branch="topic", model="my run")


def test_patterns() -> None:
    key = key_of(run_of({"run": RUN}), branch="feature/[x]")
    assert all(
        key.matches(pattern)
        for pattern in ("gpt-l8-d1024-s512-b8", "GPT*", "feature/[x]", "bf16", key.slug[:-13], "*_1x4_*")
    )
    assert not any(key.matches(pattern) for pattern in ("gpt", "feature", "2x4", ""))
