"""Stands for a file with test cases. The tests of this folder look at targets and run none."""
