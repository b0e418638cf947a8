"""Level L5: how fast the device is, how much of that operators reach, and for how long."""
