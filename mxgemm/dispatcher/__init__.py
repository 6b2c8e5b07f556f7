"""CK-tile bridge: kernel configurations become compiled, callable kernels."""
