"""DivergentCall the first operator of a whole model that leaves its reference."""
