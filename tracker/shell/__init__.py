"""What runs the core on an event loop: actions, timers, threads, and news for the dispatcher. Decides nothing."""
