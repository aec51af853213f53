"""Packages what pyproject.toml cannot say: the data folders beside the code, and the compiled scanner."""

from setuptools import Extension, find_packages, setup

BUNDLED = {"traceops._bundled.runners": "runners", "traceops._bundled.templates": "templates"}
NATIVE = "traceops/traces/native"

setup(
    packages=[*find_packages(include=["traceops*"]), *BUNDLED],
    package_dir=BUNDLED,
    package_data={
        "traceops": ["py.typed", "traces/*.pyi", "schemas/*.json"],
        **{name: ["**/*"] for name in BUNDLED},
    },
    # running a script from the checkout leaves its byte code beside it
    exclude_package_data={
        "traceops.traces": ["native/*"],
        **{name: ["**/__pycache__/*", "*.pyc"] for name in BUNDLED},
    },
    ext_modules=[
        Extension(
            "traceops.traces._native",
            [f"{NATIVE}/{source}" for source in ("module.c", "events.c", "strings.c")],
            depends=[f"{NATIVE}/{header}" for header in ("events.h", "json.h", "strings.h", "values.h")],
            optional=True,  # without a compiler the loader is pure Python: slower, with the same columns
        )
    ],
)
