"""A small accelerator simulated in C, as a vendor with nothing but a C library would ship his."""
