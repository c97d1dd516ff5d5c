"""Snapshots on S3, or any server that speaks its protocol."""
