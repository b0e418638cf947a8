"""The commands of boxes."""
