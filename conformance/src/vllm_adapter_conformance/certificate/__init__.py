"""Certificates: what one claims, building and writing it, verifying one."""
