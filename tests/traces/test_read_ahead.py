"""Reading ahead changes when things are read, never what, and leaves no thread behind."""

import threading

import pytest

from traceops.traces.source import Damaged, read_ahead


def test_items_come_in_order_and_the_error_where_it_was():
    def items():
        yield from range(100)
        raise Damaged("cut off")

    got = read_ahead(items())
    assert [next(got) for _ in range(100)] == list(range(100))
    with pytest.raises(Damaged, match="cut off"):
        next(got)
    assert list(read_ahead(iter([]))) == []


def test_giving_up_ends_the_thread_and_the_reading():
    read = []

    def endless():
        while True:
            read.append(0)
            yield b"x"

    before = threading.active_count()
    ahead = read_ahead(endless())
    assert next(ahead) == b"x"
    ahead.close()
    assert threading.active_count() == before
    assert len(read) < 100


def test_it_reads_while_the_consumer_is_at_work():
    second_read = threading.Event()

    def items():
        yield 1
        second_read.set()
        yield 2

    ahead = read_ahead(items())
    assert next(ahead) == 1
    assert second_read.wait(60)  # though nobody has asked for the second
    assert list(ahead) == [2]
