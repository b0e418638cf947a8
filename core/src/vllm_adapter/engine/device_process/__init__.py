"""A device in a process of its own: tensors go in, tensors come out.

Whoever asks never imports an adapter's modules, and an adapter never sees who asks: the process
holds core and the adapter, as any process that serves a model does. `client` asks, `held` acts.
"""
