"""The parts of `verdicts.py`: the table of faults, the suites that run them, and what watches and judges these."""
