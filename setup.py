"""Packages what pyproject.toml cannot say: the data folders beside the code, and what is compiled."""

from setuptools import Extension, find_packages, setup

BUNDLED = {
    "traceops._bundled.runners": "runners",
    "traceops._bundled.templates": "templates",
    "traceops._bundled.demo": "tests/data/slow_loader4",  # of `traceops demo`
}
ARRAYS = "traceops/core/native"
NATIVE = "traceops/traces/native"
REPLAY = "traceops/across/replay/native"
CUPTI = "traceops/capture/light/native"
STEPS = "traceops/capture/short_way/native"
LOOKS = "traceops/capture/observing/native"

setup(
    packages=[*find_packages(include=["traceops*"]), *BUNDLED],
    package_dir=BUNDLED,
    package_data={
        "traceops": [
            "py.typed",
            "core/*.pyi",
            "traces/*.pyi",
            "across/*/*.pyi",
            "capture/*/*.pyi",
            "schemas/*.json",
            "schemas/*.md",
            "hangs/*.ini",
            "hangs/*.json",
            "machine/*.ini",
            "memory/*.json",
            "words/*.ini",
        ],
        **{name: ["**/*"] for name in BUNDLED},
    },
    # running a script from the checkout leaves its byte code beside it
    exclude_package_data={
        "traceops.core": ["native/*"],
        "traceops.traces": ["native/*"],
        "traceops.across.replay": ["native/*"],
        "traceops.capture.short_way": ["native/*"],
        "traceops.capture.light": ["native/*"],
        "traceops.capture.observing": ["native/*"],
        **{name: ["**/__pycache__/*", "*.pyc"] for name in BUNDLED},
    },
    ext_modules=[
        Extension(
            "traceops.core._arrays",
            [f"{ARRAYS}/arrays.c"],
            depends=[f"{NATIVE}/block.h"],
            optional=True,  # without a compiler NumPy does the same in more passes
        ),
        Extension(
            "traceops.traces._native",
            [f"{NATIVE}/{source}" for source in ("module.c", "events.c", "strings.c")],
            depends=[f"{NATIVE}/{header}" for header in ("block.h", "events.h", "json.h", "strings.h", "values.h")],
            optional=True,  # without a compiler the loader is pure Python: slower, with the same columns
        ),
        Extension(
            "traceops.traces._snapshot",
            [f"{NATIVE}/{source}" for source in ("snapshot_module.c", "snapshot.c", "strings.c")],
            depends=[f"{NATIVE}/{header}" for header in ("block.h", "snapshot.h", "strings.h")],
            optional=True,  # without it snapshots are read by Python's unpickler
        ),
        Extension(
            "traceops.across.replay._replay",
            [f"{REPLAY}/replay.c"],
            optional=True,  # without it steps are replayed in Python: slower, with the same times
        ),
        Extension(
            "traceops.capture.light._cupti",
            [f"{CUPTI}/cupti.c"],
            libraries=["dl"],
            optional=True,  # without it a light window is torch's device-only recording
        ),
        Extension(
            "traceops.capture.short_way._short_way",
            [f"{STEPS}/short_way.c"],
            optional=True,  # without it the end of a step takes longer
        ),
        Extension(
            "traceops.capture.observing._looks",
            [f"{LOOKS}/looks.c"],
            libraries=["dl"],
            optional=True,  # without it short functions that hold the interpreter's lock are hardly seen
        ),
    ],
)
