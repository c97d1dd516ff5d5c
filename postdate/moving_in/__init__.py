"""Moving in: `postdate import` brings over what waits elsewhere, from Redis, from a Celery broker and from a Pulsar.

`messages` <- `redis_source`, `celery_source`, `pulsar_source` <- `importing` <- `cli`. A source only reads, and gives
messages one by one; `importing` stores them here in portions, and remembers in a file which ones it has stored.
"""
