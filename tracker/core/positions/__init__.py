"""Where a position is tracked: `tracked_positions` has the promise, that each is handed out once, and asks the others.

tracked_positions       those with a row in memory
bucket_positions        those of buckets whose snapshot is not durable yet, and those of segments that are not loaded,
                        while they are known
overlapping_positions   those that were handed out where another place may have them, too
"""
