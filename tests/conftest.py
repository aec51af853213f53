"""What all tests share: what hypothesis draws, and no cache. Tests import the modules beside this file."""

import gc
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

_FORKED = ("-c", "traceops", "torch.distributed.run", "traceops.doctor.worker")

# Many tests start processes: where ours is compiled anew in each of them, that is half of the time they take.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # and the assertions of all test modules are rewritten by each worker

# 6,600 tests are a heap that the collector goes through again and again: a tenth of the time of tests that compute.
gc.set_threshold(50_000, 20, 100)


def pytest_configure(config):
    if config.getoption("--hypothesis-profile", None) in (None, "same"):
        _draw_no_constants()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


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


@pytest.fixture(autouse=True, scope="session")
def _forked():
    """What tests start with `environment()` is forked from a process that has loaded torch: light_torch/forked.py."""
    import started

    sys.path.append(str(started.LIGHT_TORCH))
    import forked
    import preloaded

    undo = forked.install(preloaded.Preloaded(*_FORKED).fork)
    yield
    undo()
