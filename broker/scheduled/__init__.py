"""Scheduled messages as their users see them: what is due when, cancel it, move it, hold it.

- `ledger_schedule`, `catalog`: the delivery times of a topic, as columns by ledger; a bounded cache over the log.
- `selection`: which rows somebody means, a page of them, a histogram. Pure.
- `messages`: one entry of the log as what a user calls messages.
- `operations`: cancel, reschedule, deliver now; whole topics at a time.
- `explanation`: where one message is, and why.

The log and its cursors say what is scheduled: an entry with a delivery time that a subscription has not acknowledged.
So all of this is right whatever the index does: in memory, in snapshots that are not loaded, while it recovers, where
it is shared. HTTP is in `broker.admin`; the dispatcher is asked and told through `broker.topics`.
"""
