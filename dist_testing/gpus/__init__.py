"""GPUs: which there are, without touching CUDA; who has them; and what a world of ranks gets of them."""
