"""The CUDA room: kernels in CUDA C++ for NVIDIA GPUs, what is legal for them, and launches with attributes."""
