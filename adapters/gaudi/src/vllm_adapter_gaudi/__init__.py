"""Intel Gaudi accelerators as devices."""
