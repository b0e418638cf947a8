"""Running a decoder step by step: flat lists of bound calls, graphs, and a generator."""
