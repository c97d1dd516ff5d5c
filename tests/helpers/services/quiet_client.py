"""The logger of a client of which only errors are to be seen."""

import pulsar

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
