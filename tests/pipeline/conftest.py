"""Puts this folder on the path, so that tests below it can import its samples."""

import pytest
from summary_folders import copied


@pytest.fixture
def ddp(tmp_path):
    """Four ranks' traces."""
    return copied("ddp4", tmp_path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a cache that is the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRACEOPS_CACHE", str(folder))
    return folder
