"""HIP kernels: sources, build, load, launch. Nothing here is imported, compiled or loaded by ``import mxgemm``."""
