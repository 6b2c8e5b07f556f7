"""C kernels of the CPU: their sources, how they are built for the CPU that is here, and how they are called."""
