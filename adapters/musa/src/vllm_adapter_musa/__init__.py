"""Moore Threads GPUs as devices."""
