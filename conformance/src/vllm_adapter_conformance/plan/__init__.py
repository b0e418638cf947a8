"""Before a run: whether it can be, on what, and which cases in which order."""
