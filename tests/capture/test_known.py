"""Objects have the same numbers wherever Python puts them."""

from traceops.capture.step_detector import Known


class Thing:
    """Something that may be gone."""


class Slotted:
    """Python makes no weak reference to one."""

    __slots__ = ()


def test_numbers_come_in_order_and_none_comes_twice():
    known, things = Known(), [Thing(), Thing()]
    assert [known.number(thing) for thing in [*things, *things]] == [0, 1, 0, 1]
    for number in range(2, 40):
        thing = Thing()
        assert known.number(thing) == number and known.lives(number)
        del thing
        assert not known.lives(number)
    assert known.lives(0) and known.lives(1)


def test_nothing_is_kept_of_what_is_gone():
    known, thing = Known(), Thing()
    known.number(thing)
    reference = known.reference(thing)
    assert reference() is thing
    del thing
    assert reference() is None and not known._by_address and not known._living


def test_what_python_cannot_refer_to_weakly_has_a_number_too():
    known, things = Known(), [Slotted(), Slotted()]
    assert [known.number(thing) for thing in [*things, *things]] == [0, 1, 0, 1]
    assert known.reference(things[1])() is things[1] and known.lives(1)
