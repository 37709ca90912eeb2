"""The conformance kit: runs what torch.distributed promises on a backend, and writes what the backend does.

A *cell* is one call of `torch.distributed` under fixed conditions: operation, dtype, layout, size, root, group, mode
and world size. README.md says what is where.
"""
