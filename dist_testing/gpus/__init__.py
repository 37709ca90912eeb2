"""GPUs: which there are, without touching CUDA."""
