"""Before a server starts, and while it runs."""
