"""What acts on the device for the rules, in the device's process: it is told, reports, judges not.

The modules are sent there as texts, under another name, and import core and each other alone;
each other relatively, since that name is not this one.
"""
