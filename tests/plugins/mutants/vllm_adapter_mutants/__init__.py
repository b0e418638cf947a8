"""Kernels that are wrong in one way each; `test_mutants.py` says which rule sees it."""
