"""Pulsar's binary protocol: frames, commands, and entries as messages. Connections are in `postdate.broker.clients`."""
