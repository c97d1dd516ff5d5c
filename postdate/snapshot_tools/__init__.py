"""The commands `postdate check` and `postdate snapshots`: look at an index on disk, check, clean up, copy, export."""
