"""The owners of slots, by one of three selectors: the ring of hashes, splitting, and sticky ranges."""
