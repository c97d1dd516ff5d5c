"""Every decision of the dispatchers: events in, actions out, no asyncio, threads, clock or logging.

`key_shared.py`, `shared.py` and `single_active.py` are the three kinds of subscription over the parts beside them:
`multiple_consumers.py`, `intake.py` and `subscription_core.py` have what they share, from the top down. The sub-rooms:

- `selectors`: the owner of each slot.
- `fences`: the entries that a consumer may get after a change of members.
- `queues`: entries that wait for a consumer.
- `acknowledgements`: entries and messages of batches that are acknowledged, or not yet.

`../dispatcher.py` is the shell that runs their actions.
"""
