"""The commands `postdate ledger` and `postdate pipeline`."""
