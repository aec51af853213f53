"""Logs of the tests with ranks left out, other prefixes or one more line of trouble: what must not change."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.hangs.mutations import violations

# Where another line or another prefix still changes what is said, of more than 6,000 changed logs.
KNOWN = {"same cause behind prefixes": 3, "a certain cause stays one": 4, "no weaker verdict beside another log": 1}


@pytest.mark.slow
def test_more_trouble_is_never_less_and_silence_is_no_guilt() -> None:
    looked, found = violations(sample=200)
    assert all(looked[invariant] > 50 for invariant in looked) and len(looked) == 6
    counts = Counter(one.invariant for one in found)
    assert all(count <= KNOWN.get(invariant, 0) for invariant, count in counts.items()), found
