"""The quick facts of a machine, and manifests held against them."""
