"""What all rooms share: the rule and its cases, the target, the device on the bench."""
