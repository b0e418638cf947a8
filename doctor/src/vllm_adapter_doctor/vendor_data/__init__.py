"""What the vendors' files say of drivers and products, as tables."""
