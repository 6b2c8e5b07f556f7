"""What MX is: formats, layouts, the tensor, its bytes and their meaning. No device, no route."""
