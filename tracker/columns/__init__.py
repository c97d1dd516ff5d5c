"""Rows and positions as columns, bitmaps and sorted runs: what the trackers are made of. Pure; knows no bucket."""
