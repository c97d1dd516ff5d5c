"""Seeds that a fault of the product made fail once, each with what it showed; they are run with every test.

A seed means the same run as long as the events and the choices of `whole_service` are as they were. After a
change of those the faults are looked for again: `known_mutants.py` has them, `mutants.py --group items found` puts each
back alone and says which seed finds it first.
"""

from typing import NamedTuple


class FailedSeed(NamedTuple):
    """A run that failed once."""

    seed: int
    showed: str
    variant: str | None = None
    mutant: str | None = None
    """The fault of `known_mutants.py` that it finds when it is put back (`test_simulation_discriminates.py`)."""


FAILED_SEEDS: list[FailedSeed] = [
    FailedSeed(0, "item 1: Shared took from a heap that was not there", mutant="item-1"),
    FailedSeed(5, "item 2: no consumer was told of a due message", mutant="item-2"),
    FailedSeed(70, "item 3: immediate messages of a ledger in recovery were put aside", mutant="item-3"),
    FailedSeed(62, "item 4: a seek waited for the snapshot storage", mutant="item-4"),
    FailedSeed(41, "item 5: a newcomer of the classic mode waited for a delayed message", mutant="item-5"),
    FailedSeed(10, "item 9: what was acknowledged was delivered later", mutant="item-9"),
    FailedSeed(2, "no job had a turn after the clock was put back", mutant="steps-of-the-clock-unseen-by-jobs"),
    # With the events of then; since some were added, 60 seeds have not found these two faults again.
    FailedSeed(61, "a consumer that came while its topic closed met a closed index, which was told as a defect"),
    FailedSeed(31, "the same, of Key_Shared with sticky ranges"),
    FailedSeed(69413211, "msgDelayed on a shared index: what was taken and acknowledged was subtracted twice"),
    FailedSeed(69413199, "the same"),
    FailedSeed(3143, "a smooth resume stopped: another event came in the millisecond of a grant"),
    FailedSeed(3401, "the same"),
    FailedSeed(5006, "4,781 due rows of sealed buckets stayed in memory, of 30 that may be loaded"),
    FailedSeed(
        440856744,
        "messages of several ledgers that were moved by their ids were copied ledger by ledger, not in order of time",
    ),
    FailedSeed(2808193559, "a small poll merged 16,384 due rows, more than may be loaded"),
    FailedSeed(3975524176, "9,800 rows of one time were loaded, and all were acknowledged: they made room for none"),
    FailedSeed(2655332223, "a dispatcher of a log that was closed meanwhile failed when it stopped"),
    FailedSeed(3975524882, "segments that were due before the clock was put back were never loaded: 62 due entries"),
    FailedSeed(1292482514, "the same, of three kinds of subscriptions"),
    FailedSeed(1467248192, "a message that was read while delays were switched off was forgotten and never sent"),
    FailedSeed(2846499362, "a newcomer's bound was behind entries of ledgers that were being written"),
    FailedSeed(1023243930, "what the index gave too early let others go before what the tracker still had"),
    FailedSeed(722476499, "the index had forgotten what it tracked when the scan came: it was sent twice"),
    FailedSeed(711543929, "a tracker whose dispatcher had nothing to read read the same positions again and again"),
    FailedSeed(
        2081585848, "messages were lost to the index that a snapshot lost twice while a ledger waited for its scan"
    ),
    FailedSeed(2846500176, "another entry's header was read where cached blocks overlap: a message expired early"),
    FailedSeed(2150442060, "newcomers waited for a cancelled entry of a ledger that was deleted"),
    FailedSeed(
        2056946279, "of a bucket without messages, what came with its metadata was counted after it was cut off"
    ),
    FailedSeed(4, "a subscription of a shared index that read again what was too many in memory was sent it early"),
    FailedSeed(1351370623, "a merge kept a row that had been handed out, and not the one that was still to come"),
    FailedSeed(4, "of a fault put in: a woken owner and its fence", variant="objects", mutant="serves-after-a-fence"),
    FailedSeed(
        11,
        "of one put in: killed before the object",
        variant="objects",
        mutant="receipt-before-its-object",
    ),
    FailedSeed(3215921987, "what a view of a shared index had given was sent again to the consumer that held it"),
]
