"""The conformance kit: runs what torch.distributed promises on a backend, and writes what the backend does.

A *cell* is one call of `torch.distributed` under fixed conditions: operation, dtype, layout, size, root, group, mode
and world size. `catalogue` lists the cells. `session` runs them on worker pools, `judge` turns what the ranks observed
into a status, `expectations` compares it with the backend's expectation file, and `matrix` writes the capability
matrix.
"""
