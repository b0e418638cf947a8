"""How cases ended: the journal of a run, outcomes, waivers, and the words for them."""
