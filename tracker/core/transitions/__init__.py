"""The functions that change a tracker's state: a file for each step in the life of a bucket, and two tables of events.

    adding         a message goes into the mutable bucket, or is refused
    sealing        it becomes an immutable bucket with a snapshot of segments
    loading        the next segments are loaded
    caching        positions of segments that are not loaded are read, and forgotten again
    handing_out    due messages are handed out
    merging        buckets that are too many are merged
    deleting       a bucket of which nothing is left is deleted
    recovering     buckets that the cursor names are opened again
    losing         a snapshot that is gone or damaged is given up

    life           how a bucket comes, moves from state to state, and goes
    overlapping    which ranges may have a position in two places
    operations     (operation of a caller, state of the bucket) -> function
    table          (answer to an action, state of the bucket) -> function
    planning       timers that have come due -> actions

No other module changes a field of a bucket or of the state; `test_only_transitions_change_a_state` reads the source for
it, and `tests/helpers/one_writer.py` looks at every assignment while the tracker's tests run.
"""
