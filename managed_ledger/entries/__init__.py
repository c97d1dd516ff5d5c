"""Entries as bytes: the metadata before a payload, headers in columns, and blocks of many. Knows no disk."""
