"""Reads of headers and payloads: the entries that a read wants, the blocks in memory, and the hop to a thread."""
