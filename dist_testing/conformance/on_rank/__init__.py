"""The half of the conformance kit that runs on ranks: the only one that uses torch."""
