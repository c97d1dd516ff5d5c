"""Every decision of the dispatchers: events in, actions out, no asyncio, threads, clock or logging.

`key_shared.py`, `shared.py` and `single_active.py` are the three kinds of subscription over the parts beside them.
`../dispatcher.py` is the shell that runs their actions.
"""
