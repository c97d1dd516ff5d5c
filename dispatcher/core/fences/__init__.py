"""The entries that a consumer may get after a change of members: by draining slots, or by a position."""
