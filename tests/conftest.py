"""What all tests share: what hypothesis draws, and no cache. Tests import the modules beside this file."""

import os
import sys

import pytest
from hypothesis import settings

# jsonschema builds 38 parsers for it when it is imported, and none of our schemas has such a format.
sys.modules["rfc3987_syntax"] = None

settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile(
    "explore", max_examples=100 * int(os.environ.get("TIMES", "10")), deadline=None, print_blob=True
)
settings.load_profile("same")  # make explore: --hypothesis-profile=explore

# Many tests start processes: where ours is compiled anew in each of them, that is half of the time they take.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config):
    if config.getoption("--hypothesis-profile", None) in (None, "same"):
        _draw_no_constants()


def _draw_no_constants():
    """Hypothesis also draws constants of the modules that are loaded: any number in our code changed the examples."""
    try:
        from hypothesis.internal.conjecture import providers
    except ImportError:  # of another version
        return
    if hasattr(providers, "_get_local_constants"):
        nothing = providers.Constants()
        providers._get_local_constants = lambda: nothing


@pytest.fixture(autouse=True, scope="session")
def _no_cache():
    """Neither reads nor writes what the user keeps: a test of the cache names a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEOPS_CACHE", "off")
        yield


@pytest.fixture
def kept_summaries(tmp_path_factory, monkeypatch):
    """For tests that analyse the runs of tests/data: each trace is read once for all of them, in all workers."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    monkeypatch.setenv("TRACEOPS_CACHE", str(shared / "summaries"))


@pytest.fixture(scope="session")
def _preloaded():
    import started

    sys.path.append(str(started.LIGHT_TORCH))
    import preloaded

    return preloaded.Preloaded("traceops.doctor.worker")


@pytest.fixture
def forked_ranks(_preloaded):
    """The doctor's ranks that a test starts in this process are forked from one that has loaded torch."""
    import forked

    undo = forked.install(_preloaded.fork)
    yield
    undo()
