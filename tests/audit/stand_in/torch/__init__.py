"""Stands in for torch, whose import costs seconds, in tests of what the audit does around it.

It has only what the models of harnesses call. Stress runs use torch itself.
"""
