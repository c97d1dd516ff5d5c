"""Every decision about buckets: no clock, no storage, no event loop.

The files follow PIP-195's sentence:

    tracker_core                              operations, questions and events in, actions out
    state                                     all that is known
    single_adds, sources, due_rows            messages go into the mutable bucket, and rows wait for their times
    bucket, segment_sizes                     it is sealed, and becomes an immutable bucket with segments
    load_queue, barriers                      the next segments are loaded, and hold up hand-out until then
    positions/, position_cache                each position is handed out once
    merge_windows                             buckets that are too many are merged
    recovery                                  buckets that the cursor names are opened again
    actions, circuit_breakers, attempts       the calls that this takes, and their failures
    timers                                    when to look again, and why

`transitions/` has everything that changes the state, in the same order; `questions` and `checks` read it.
"""
