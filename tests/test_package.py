"""What ``import traceops`` shows: completion in a notebook asks for it."""

import traceops


def test_what_is_loaded_on_first_use_is_listed():
    assert {"analyze", "capture", "Schedule", "__version__"} <= set(dir(traceops))
    assert all(hasattr(traceops, name) for name in dir(traceops) if name not in ("capture", "Schedule"))
