"""The parts of `verdicts.py`: the table of faults, the suites that run them, and the code that watches and judges."""
