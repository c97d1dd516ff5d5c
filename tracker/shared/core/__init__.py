"""The pure parts of a shared index: the rows of a view, and due rows of which only the positions are in memory."""
