"""The AITER room: what of AITER is installed, its kernels' contracts, and direct launches of its code objects."""
