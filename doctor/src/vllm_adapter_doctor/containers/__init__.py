"""How a container gets its devices."""
