"""Checkpoints of the log as objects, in a folder or on S3: what a backup is made of, and later a log on object storage.

`manifest` is the format, `object_store` the few calls on a place of objects, and its form in a folder (S3's is
`snapshot_storage.s3.objects`); `checkpoints` stores and fetches.
"""
