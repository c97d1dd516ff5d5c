"""The command `postdate demo`: the main job with a crash in the middle, recorded and judged."""
