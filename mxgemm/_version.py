"""The version, read by the build backend and by ``mxgemm.__version__``."""

__version__ = "0.1.0"
