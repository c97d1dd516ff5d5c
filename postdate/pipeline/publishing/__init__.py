"""The one step that makes new snapshots an index: tasks stage them, the driver stores them and lets cursors name them.

- `staging`: the files of the tasks; `publication`: the step itself, which a crash leaves undone or done.
- `cursor_log`, `selection`: the cursors of a log that no service has open, and which of them are meant.
- `batch_mark`: a batch of a stream is in the index once.
"""
