"""The one step that makes new snapshots an index: tasks stage or store them, the driver lets cursors name them.

- `staging`: the files of the tasks; `storing`: their objects on S3, in place of files.
- `publication`: the step itself, which a crash leaves undone or done.
- `cursor_log`, `selection`: the cursors of a log that no service has open, and which of them are meant.
- `batch_mark`: a batch of a stream is in the index once.
"""
