"""Tiny decoders and models of transformers, made to fit a descriptor."""
