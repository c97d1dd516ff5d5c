"""The storages of the contract suite, and the S3 servers below some of them."""
