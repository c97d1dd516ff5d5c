"""The commands `postdate snapshots`: look at an index on disk, check it, clean up, copy and export it."""
