"""How a model will run on devices: what it needs, what they allow, each line with its reason."""
