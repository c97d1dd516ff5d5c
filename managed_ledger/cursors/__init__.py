"""Cursors: the acknowledgements of a subscription in memory and as records, and the properties of all cursors."""
