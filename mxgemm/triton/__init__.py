"""The Triton room: device code in ``kernels/``, how it is compiled and launched, and which tiles are legal."""
