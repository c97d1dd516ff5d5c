"""Snapshots in a RocksDB folder: the storage of a single machine.

Snapshots are derived from the log, so a damaged folder is not worth a repair. Three rules say what happens when a
folder is opened to write, and when damage is met later:

1. *In use.* Another writer has the folder: `StorageLockedError`, and nothing is touched.
2. *Damaged.* RocksDB calls it corrupt, or its format is another version's: it is renamed to `<name>-put-aside-<time>`
   and forgotten. An empty folder takes its place, one line of the log at level ERROR names the renamed one, and the
   trackers read again from the log what cursor properties name and the folder no longer has.
3. *Anything else*, such as missing rights, a full or failing disk, no folder in its place, or the database of another
   program: an error that says what to do, and the folder stays as it is.

A damaged entry costs its bucket alone. A folder that is only read is never renamed.
"""
