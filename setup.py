"""Packages the two data folders beside the code: runners/ and templates/ ship inside the wheel."""

from setuptools import find_packages, setup

BUNDLED = {"traceops._bundled.runners": "runners", "traceops._bundled.templates": "templates"}

setup(
    packages=[*find_packages(include=["traceops*"]), *BUNDLED],
    package_dir=BUNDLED,
    package_data={"traceops": ["py.typed", "report/*.json"], **{name: ["**/*"] for name in BUNDLED}},
    # running a script from the checkout leaves its byte code beside it
    exclude_package_data={name: ["**/__pycache__/*", "*.pyc"] for name in BUNDLED},
)
