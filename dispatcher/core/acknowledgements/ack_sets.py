"""The messages of a batch that are still unacknowledged: words of 64 bits, bit 1 while it is.

The protocol carries words as signed 64-bit integers and leaves out trailing zero words, so they are kept signed;
Python's `&` on negative integers is that of two's complement. A batch has words only once part of it was acknowledged.
"""

AckSet = tuple[int, ...]
"""Lowest word first."""

_WORD_MASK = 2**64 - 1


def full_ack_set(message_count: int) -> AckSet:
    """Return the words of a batch of which nothing is acknowledged.

    >>> full_ack_set(3), full_ack_set(64), full_ack_set(65)
    ((7,), (-1,), (-1, 1))
    """
    words = [-1] * (message_count // 64)
    if message_count % 64:
        words.append(2 ** (message_count % 64) - 1)
    return tuple(words)


def intersection(ours: AckSet, theirs: AckSet) -> AckSet:
    """Return the messages that are unacknowledged in both; a word that is missing is zero.

    >>> intersection((7,), (5, 1))
    (5,)
    """
    return tuple(a & b for a, b in zip(ours, theirs, strict=False))


def unacknowledged(ack_set: AckSet) -> int:
    """Return how many messages are still unacknowledged.

    >>> unacknowledged((-1, 1))
    65
    """
    return sum((word & _WORD_MASK).bit_count() for word in ack_set)
