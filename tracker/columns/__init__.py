"""Rows and positions as columns, bitmaps and sorted runs, for the trackers. Pure; knows no bucket."""
