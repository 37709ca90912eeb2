"""The words of the library: specification, case, outcomes, verdict, errors, and the JSON codec."""
