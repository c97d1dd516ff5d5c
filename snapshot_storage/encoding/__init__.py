"""Rows of the delayed index as columns, and PIP-195's bytes of them. Knows no storage."""
