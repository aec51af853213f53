"""Lets tests in every folder import generated_run, and keeps them off the cache."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_cache():
    """Neither reads nor writes what the user keeps: a test of the cache names a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEOPS_CACHE", "off")
        yield
