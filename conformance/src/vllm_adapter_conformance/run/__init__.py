"""The run: pytest's plug-in, its parent, its worker, and who starts them."""
