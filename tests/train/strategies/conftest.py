"""One thread, as ranks have, and one folder for what the groups of ranks computed."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _computed_once_for_all_workers(tmp_path_factory):
    import strategy_ranks

    own = tmp_path_factory.getbasetemp()
    strategy_ranks.computed = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
