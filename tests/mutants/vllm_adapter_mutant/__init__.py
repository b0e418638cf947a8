"""An adapter with one kernel in the place of the CPU's: `run.py` says which."""
