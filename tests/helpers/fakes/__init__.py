"""Parts in memory that keep the promises of the real ones, and time that costs nothing."""
