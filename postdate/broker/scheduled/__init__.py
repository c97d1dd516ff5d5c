"""Scheduled messages as users see them: list, cancel, move, hold and explain them.

- `ledger_schedule`, `catalog`: the delivery times of a topic, as columns by ledger; a bounded cache over the log.
- `selection`: the rows that a request selects, a page of them, a histogram. Pure.
- `messages`: the messages behind entries of the log; an entry is whole, also a batch.
- `matched`: the messages that a request means, with all chunks of a message.
- `chunks`, `portions`: which entries belong to one message, and which are moved in one synced write.
- `operations`: cancel, reschedule, deliver now; whole topics at a time.
- `explanation`: the state of one message, and the reason.

A scheduled message is an entry of the log with a delivery time that a subscription has not acknowledged. So the answers
come from the log and its cursors, and do not depend on the state of the delayed index: loaded or not, recovering or
shared. HTTP is in `postdate.broker.admin`; the dispatcher is reached through `postdate.broker.topics`.
"""
