"""Scheduled messages as programs and operators steer them, over the service's HTTP interface `/postdate/v1`.

- `scheduler`, `async_scheduler`: the client for programs; `postdate` hands on both classes.
- `cli`: `postdate scheduled`, `pause`, `resume`, `explain` and `topics`; `tables` is what they look like.
- `api`: one request and its answer, with the service's errors as exceptions; `values` is what goes in and comes out.

The service itself is in `broker`. Nothing here reads a log or an index: what these commands can do, every other client
of the HTTP interface can do too.
"""
