"""Real launchers of clusters, for tests on simulated nodes: a private copy of Debian's Slurm and Open MPI."""
