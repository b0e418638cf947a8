"""Which adapters are installed, and which of them can be used on this machine."""
