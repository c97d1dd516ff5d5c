"""Objects of the log, in a folder or on S3: checkpoints, of which backups are made, and logs that live on objects.

`object_store` has the few calls on a place of objects, and its form in a folder; S3's is in
`snapshot_storage.s3.objects`. `manifest` is the one object that says which others count. `checkpoints` stores and
fetches that of one log, `place_checkpoints` those of all bundles in one place, and `shared_records` is what belongs to
all of them.

A log on objects: `shipped_database` is its database, `log_object` the form of a round, `takeover` the way from one
owner to the next, `bundle_checkpoints` what ends a replay, `local_tables` the copies on the disk, and `reading_out`
makes a folder of it for those who do not own it.
"""
