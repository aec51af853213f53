"""Where the groups of ranks leave what they computed."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _computed_once_for_all_workers(tmp_path_factory):
    import strategy_cases

    own = tmp_path_factory.getbasetemp()
    strategy_cases.computed = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
