"""How devices, processors and network adapters are joined."""
