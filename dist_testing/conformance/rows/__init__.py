"""Cells that a script describes: one function per cell, called on every rank.

These modules import no torch, because the runner imports them to know the cells. A script gets torch from its `Kit`.
"""
