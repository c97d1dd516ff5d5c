"""What a role may do, and the grants that say so."""
