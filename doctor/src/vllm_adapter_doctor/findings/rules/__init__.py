"""One kind of fault a module; importing it registers its rules."""
