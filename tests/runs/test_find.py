"""Which runs a folder, a pattern or several paths hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.runs.find import find_runs, natural


def make(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(*paths: object) -> list[str]:
    return [place.name for place in find_runs([str(path) for path in paths]).runs]


def test_a_folder_of_runs_is_each_of_them_in_natural_order(tmp_path: Path) -> None:
    make(tmp_path, *(f"profile/run_{n}/run.json" for n in (10, 2, 1)))
    assert names(tmp_path / "profile") == ["run_1", "run_2", "run_10"]


def test_a_run_is_one_run_whatever_lies_in_it(tmp_path: Path) -> None:
    make(tmp_path, "a/run.json", "a/rank_0/x.pt.trace.json", "a/other/run.json")
    assert names(tmp_path / "a") == ["a"]


def test_traces_without_run_json_are_one_run(tmp_path: Path) -> None:
    make(tmp_path, "a/rank_0/x.pt.trace.json", "a/rank_1/x.pt.trace.json")
    assert names(tmp_path / "a") == ["a"]


def test_beside_runs_a_folder_of_traces_is_one_too_and_logs_are_none(tmp_path: Path) -> None:
    make(tmp_path, "a/run.json", "b/run.json", "c/rank_0.pt.trace.json", "logs/x.json", "d/readme.txt")
    assert names(tmp_path) == ["a", "b", "c"]


def test_the_only_run_of_a_folder_is_read_as_before(tmp_path: Path) -> None:
    make(tmp_path, "profile/a/run.json")
    assert [place.path for place in find_runs([str(tmp_path / "profile")]).runs] == [str(tmp_path / "profile")]


def test_names_are_never_the_same(tmp_path: Path) -> None:
    make(tmp_path, "profile/x/run.json", "other/x/run.json")
    assert names(tmp_path / "profile/x", tmp_path / "other/x") == ["other/x", "profile/x"]


def test_one_run_given_twice_is_one(tmp_path: Path) -> None:
    make(tmp_path, "p/x/run.json", "p/y/run.json")
    (tmp_path / "p" / "link").symlink_to("x")
    assert names(tmp_path / "p/x", tmp_path / "p/y", tmp_path / "p/link") == ["x", "y"]


def test_links_to_runs_elsewhere_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/a/run.json", "profile/b/run.json", "profile/c/run.json")
    (tmp_path / "profile" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    assert names(tmp_path / "profile") == ["b", "c"]


def test_the_runs_of_a_series_of_two_sides_stay_with_compare(tmp_path: Path) -> None:
    make(tmp_path, "s/pairs.json", "s/base_1/run.json", "s/head_1/run.json")
    assert names(tmp_path / "s") == ["s"]


def test_patterns_that_the_shell_left_are_expanded(tmp_path: Path) -> None:
    make(tmp_path, "p/ddp_1/run.json", "p/ddp_2/run.json", "p/fsdp/run.json")
    assert names(tmp_path / "p" / "ddp_*") == ["ddp_1", "ddp_2"]
    with pytest.raises(InputError, match="matches nothing"):
        names(tmp_path / "p" / "zero*")


def test_natural_sorts_words_and_numbers() -> None:
    assert sorted(["a10", "a2", "b", "10", "9"], key=natural) == ["9", "10", "a2", "a10", "b"]
