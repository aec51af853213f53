"""No variant of a real file ends a command in a traceback or makes it write much more than it read.

`python tests/hostile_variants.py 10000` tries so many by hand. What it finds becomes a fixed case beside its reader.
"""

import tempfile
from pathlib import Path

import pytest
from drawn import examples
from hostile_variants import READERS, attempt
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("name", READERS)
@examples(12)
@given(seed=st.integers(0, 2**32))
def test_a_hostile_variant_costs_itself_only(name, seed):
    with tempfile.TemporaryDirectory() as folder:
        assert attempt(name, seed, Path(folder)) == ""
