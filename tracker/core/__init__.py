"""Every decision about buckets: no clock, no storage, no event loop.

state           all that is known, and what follows from it
actions         the calls that the core asks for, and their answers
lanes           when a call may start
adding          messages go into the last mutable bucket
sealing         it is frozen, stored, named, and leaves memory
loading         segments come back when their time comes
handing_out     rows are handed out in order, each position once
recovering      buckets that the cursor names are known again
merging         buckets that are too many become one
deleting        snapshot and name of a bucket go
planning        what to do now, what an answer changes, and when to look again
tracker_core    all of it, as the shell sees it
"""
