"""GPUs: finding them without CUDA, leasing them to worlds of ranks, and checking their memory and errors."""
