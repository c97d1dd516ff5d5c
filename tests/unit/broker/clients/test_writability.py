"""A connection takes messages while it has room for what was written and for what is being read."""

from postdate.broker.clients.writability import Writability


def test_no_read_begins_while_as_many_bytes_as_may_be_are_being_read() -> None:
    writability = Writability(read_bytes_max=10)

    writability.begin_read(9)
    before = writability.is_writable
    writability.begin_read(5)
    at_the_bound = writability.is_writable
    tells_above_the_half = writability.end_read(5)
    tells_below_it = writability.end_read(9)

    assert (before, at_the_bound, writability.is_writable) == (True, False, True)
    assert (tells_above_the_half, tells_below_it) == (False, True)


def test_it_is_writable_again_when_both_reasons_against_it_are_gone() -> None:
    writability = Writability(read_bytes_max=10)

    writability.begin_read(10)
    writability.pause()
    tells = [writability.end_read(10)]
    while_the_client_does_not_read = writability.is_writable
    writability.begin_read(10)
    tells.append(writability.resume())
    while_others_are_read_for = writability.is_writable
    tells.append(writability.end_read(10))

    assert (while_the_client_does_not_read, while_others_are_read_for, writability.is_writable) == (False, False, True)
    assert tells == [False, False, True]
