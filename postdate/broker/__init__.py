"""The service: a broker of delayed messages that Pulsar's clients use.

- `cli`: the commands of `postdate` that are the service's own.
- `configuration`: the keys, their sources (file, `--set`), and the warnings about keys that are not read.
- `server`: the process, its ports and its end.
- `service`: what all connections share, the open bundles with their topics, and the periodic jobs.
- `ownership`: which service has which bundle.
- `network`: listening, TLS, and the admission of a connection before its first frame.
- `protocol`: Pulsar's frames and commands, as bytes and as protobuf messages.
- `authentication`, `authorization`: the role of a client, and the permissions of a role.
- `clients`: one connection with its requests, and what it publishes and acknowledges.
- `topics`: topics, subscriptions, their producers, consumers, policies and limits.
- `scheduled`: scheduled messages: listing, cancelling, rescheduling, pausing and explaining them.
- `admin`: the web port: health, metrics, Pulsar's admin paths.
- `monitoring`: the Grafana dashboard and the alert rules that come with the service.
- `page`: the page at `/` of the web port.

Left out: the choice of a consumer for a message (`dispatcher`), the index of delivery times (`tracker`), and the log
(`managed_ledger`).
"""
