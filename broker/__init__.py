"""The service: a broker of delayed messages that Pulsar's clients use.

- `cli`: the commands of `postdate` that are the service's own.
- `configuration`: keys, where they come from, and what is done about those that are not read.
- `server`: the process, what all its connections share, and how the rooms are wired together.
- `network`: ports, TLS, and what a connection is before anything is spoken on it.
- `protocol`: Pulsar's frames and commands, as bytes and as protobuf messages.
- `authentication`, `authorization`: who a client is, and what it may do.
- `clients`: one connection and what it holds: producers, consumers, requests.
- `topics`: topics, subscriptions, their policies and limits.
- `scheduled`: what is due when, and how it is cancelled, moved, held and explained.
- `admin`: the web port: health, metrics, Pulsar's admin paths.

Which message goes to which consumer is decided in `dispatcher`, when it is due in `tracker`; the log is
`managed_ledger`.
"""
