"""Many words are searched for at once: the same answer as one by one."""

from __future__ import annotations

import pytest

from traceops.hangs.readers.messages import WORDS
from traceops.traces.text_lines import WordSearch, holds_any

HEALTHY = b"".join(
    b"Epoch [2/2], Step [%d/12942], Loss: 2.1197, Perplexity: 8.3289, exit 0, 100%%|\n" % step for step in range(50)
)
NEEDLES = WORDS.words
SEARCH = WordSearch(NEEDLES)


def test_no_word_is_in_a_healthy_block():
    assert not any(word in HEALTHY for word in NEEDLES)
    assert not SEARCH.any_in(HEALTHY) and not holds_any(HEALTHY, NEEDLES)


@pytest.mark.parametrize("before", range(5))
def test_each_word_is_found_at_each_place(before):
    missed = [word for word in NEEDLES if not SEARCH.any_in(b"." * before + word)]
    assert missed == [] and all(holds_any(HEALTHY + b"x" * before + word + HEALTHY, NEEDLES) for word in NEEDLES)


def test_a_word_that_is_cut_is_none():
    for word in NEEDLES:
        for cut in (word[1:], word[:-1]):
            assert SEARCH.any_in(HEALTHY + cut + b"\n") is any(other in cut for other in NEEDLES)


@pytest.mark.parametrize("block", [b"", b"a", b"ab", b"abc", b"abcd", "Störung\U0001f525".encode()])
def test_short_blocks_and_short_words(block):
    words = (b"bc", b"abcd", "Störung".encode(), *(b"never %d" % number for number in range(30)))
    assert holds_any(block, words) is any(word in block for word in words)
