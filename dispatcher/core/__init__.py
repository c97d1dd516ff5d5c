"""Every decision of the dispatchers: events in, actions out, no asyncio, threads, clock or logging.

`subscription_core.py` is the interface to the shell. `single_active.py` decides for Exclusive and Failover,
`multiple_consumers.py` for Shared and Key_Shared. That one stands on parts, which know nothing of it and each other:

- `intake.py` with `read_plan.py`: what is read next, and what is ready when.
- `shared.py`, `key_shared.py` (both are an `assignor.py`): the consumer of an entry, and the order of those that wait.
- `budget.py` with `gate.py`: how much consumers may hold, and how much may wait.
- `unsent_delayed.py`: how late a delayed entry is when it is sent.

The sub-rooms:

- `selectors`: the owner of each slot.
- `fences`: the entries that a consumer may get after a change of members.
- `queues`: the replay queue, and entries that are held for the order of time.
- `acknowledgements`: entries and messages of batches that are acknowledged, or not yet.

`../dispatcher.py` is the shell that runs their actions.
"""
