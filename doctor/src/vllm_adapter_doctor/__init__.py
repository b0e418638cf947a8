"""Boxes: reports, devices, topology, findings, containers, and health while serving."""
