"""Intel discrete GPUs as devices."""
