"""What all tests share: what hypothesis draws, and no cache. Tests import the modules beside this file."""

import atexit
import gc
import os
import shutil
import signal
import sys
from collections import Counter

import pytest
import slow_first
from hypothesis import settings

# jsonschema builds 38 parsers for it when it is imported, and none of our schemas has such a format.
sys.modules["rfc3987_syntax"] = None

settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile(
    "explore", max_examples=100 * int(os.environ.get("TIMES", "10")), deadline=None, print_blob=True
)
settings.load_profile("same")  # make explore: --hypothesis-profile=explore

_FORKED = ("-c", "traceops", "torch.distributed.run", "traceops.doctor.worker")

os.environ["TRACEOPS_HTA"] = "0"  # its own tests ask for it

# Many tests start processes: where ours is compiled anew in each of them, that is half of the time they take.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # and the assertions of all test modules are rewritten by each worker

# Ranks make and drop tensors of megabytes: a C library that gives the memory back at once gets new pages each time,
# which the kernel has to clear. It reads this when a process starts: what tests start has it, workers of pytest too.
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "1000000000")
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "500000000")

# 6,600 tests are a heap that the collector goes through again and again: a tenth of the time of tests that compute.
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)  # Python's end goes through all of it once more

# So a lot of garbage waits. A child that a test forks must not collect it: a destructor would end threads that only
# the parent has, and abort. A pool whose worker aborted waited for ever.
os.register_at_fork(after_in_child=gc.freeze)


# nohup, and a shell's `&`, have these ignored: what tests start would outlive what it is ended with.
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    if config.getoption("--hypothesis-profile", None) in (None, "same"):
        _draw_no_constants()


_LOADED_TORCH = ["before the tests"] if "torch" in sys.modules else []


def pytest_collectreport(report):
    if "torch" in sys.modules and not _LOADED_TORCH:
        _LOADED_TORCH.append(report.nodeid)


_SECONDS = "traceops/seconds"  # what each test took when it last ran, in pytest's cache
_took = Counter()


def pytest_addoption(parser):
    parser.addoption(
        "--within", type=float, metavar="SECONDS", help="only the quickest tests: as many as took so long together"
    )


def pytest_runtest_logreport(report):
    _took[report.nodeid] += report.duration


def pytest_sessionfinish(session):
    cache = getattr(session.config, "cache", None)
    if "PYTEST_XDIST_WORKER" not in os.environ and cache is not None and _took:
        cache.set(_SECONDS, {**cache.get(_SECONDS, {}), **{name: round(s, 3) for name, s in _took.items()}})


@pytest.hookimpl(trylast=True)  # what -m and -k leave out is out already
def pytest_collection_modifyitems(config, items):
    if (most_s := config.getoption("--within")) is not None:
        chosen = slow_first.quickest([item.nodeid for item in items], config.cache.get(_SECONDS, {}), most_s)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
    if "PYTEST_XDIST_WORKER" in os.environ:
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        items[:] = slow_first.slow_first(items, [item.nodeid for item in items], workers)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def loaded_torch():
    """Who had loaded torch when the tests were collected; empty where nobody had."""
    return _LOADED_TORCH


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


@pytest.fixture(scope="module")
def chromium():
    """Started once a module: while it runs, playwright's event loop is the thread's."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture
def browser(chromium):
    """Chromium, for tests that are marked as needing it; skips where it or playwright is not there."""
    yield chromium
    for context in chromium.contexts:
        context.close()
