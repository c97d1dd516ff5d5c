"""The shell: runs the core's actions on an event loop, sets timers, and tells the dispatcher. Decides nothing."""
