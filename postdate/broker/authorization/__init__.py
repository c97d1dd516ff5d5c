"""Authorization: the permissions of a role, and the grants behind them."""
