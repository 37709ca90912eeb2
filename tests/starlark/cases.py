"""Stands for a file with test cases. The tests of this folder analyse targets and run none."""
