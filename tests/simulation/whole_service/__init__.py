"""The whole service but the wire, on one virtual clock, driven by a seed and judged by an oracle of its own.

    variants.py    what a seed chooses: kinds of subscriptions, limits, tracker, how storage and log behave
    shipped.py     the logs on an object storage: requests that are late, lost, and done without an answer
    stalled.py     an owner that stands still, and wakes up beside the next life
    disk.py        the log's database and executors without threads; what a kill and a power cut leave
    life.py        one life of the service: an event loop of its own, which a kill drops as it is
    clients.py     consumers, and what their clients remember over a reconnect
    oracle.py      what may be sent and what must be, from the log and the acknowledgements alone
    events.py      what happens
    simulation.py  the story: events, then rest, over any number of lives

Topics, subscriptions, dispatchers, trackers and the log are the real ones (`postdate.broker.service.service` is how
they are wired). The wire protocol and the storages' own formats are left out: they have their tests.
"""
