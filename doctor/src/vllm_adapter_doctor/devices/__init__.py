"""Which devices a box has, and which would be used."""
