"""Words to look for before a pattern are in every name that the pattern finds."""

import pytest
from events_builder import build, note
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure import activity, host_rows
from traceops.measure.host_rows import named

ASCII = st.characters(max_codepoint=127)
PATTERNS = {"input": (host_rows._INPUT, host_rows._INPUT_WORDS), "queues": (host_rows._QUEUES, host_rows._QUEUES_WORDS)}


@pytest.mark.parametrize("which", PATTERNS)
@given(st.data())
def test_no_name_is_lost_to_the_words(which, data):
    pattern, words = PATTERNS[which]
    name = data.draw(st.from_regex(pattern, alphabet=ASCII))
    assert named(build([note(name, 0, 1)]), pattern, words).tolist() == [True]


@given(st.from_regex(activity._LIBRARY, alphabet=ASCII))
def test_no_kernel_of_a_library_is_lost_to_the_words(name):
    assert activity.communicates(name)


@given(st.from_regex(activity._VERB, alphabet=ASCII))
def test_no_collective_is_lost_to_the_words(name):
    other = activity._NONE.search(name) is not None and activity._LIBRARY.search(name) is None
    assert activity.communicates(name) is not other


def test_words_alone_do_not_make_a_name_fit():
    names = ["Memory", "relaunch", "cudaMemcpyAsync", "cudaLaunchKernel"]
    events = build([note(name, 0, 1) for name in names])
    found = named(events, host_rows._QUEUES, host_rows._QUEUES_WORDS).tolist()
    assert found == [False, False, True, True]
