"""Appends and group commits: one synced write for everything that topics and cursors have pending."""
