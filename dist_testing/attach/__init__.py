"""Attached worlds: their ranks exist already, because torchrun, srun, mpirun or a script has started them."""
