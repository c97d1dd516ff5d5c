"""The client of scheduled messages, for programs and operators, over the HTTP interface `/postdate/v1`.

- `scheduler`, `async_scheduler`: the client for programs; `postdate` hands on both classes.
- `cli`: `postdate scheduled`, `pause`, `resume`, `explain` and `topics`; `tables` formats their output.
- `api`: one request and its answer, with the service's errors as exceptions; `values` has arguments and results.

The service itself is in `broker`. No module here reads a log or an index, so every other client of the HTTP interface
can do the same.
"""
