"""An adapter whose runtime has one fault: the one that FAULTY_RUNTIME names, or none."""
