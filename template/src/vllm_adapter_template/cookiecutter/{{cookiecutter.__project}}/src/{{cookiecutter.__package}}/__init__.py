"""An adapter: adapter.json is its manifest, capabilities/ its descriptors, kernels.py its code."""
