"""The emulator's table against AMD's published pseudo-code, where someone has a file of it."""
