"""A pasted report becomes host facts."""
