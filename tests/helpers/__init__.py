"""Helpers that tests share, and no test.

`fakes` are the log, the cursor, consumers and time in memory; `storages` the storages of the contract suite; `services`
runs Postdate and a real Pulsar and drives their clients; `spark` has the data and the oracle of the bulk jobs. Beside
them: topics and services with scheduled messages or grants, the browser that looks at the page, certificates and
tokens, disks that get full, logs that are damaged, the cases of every command.
"""
