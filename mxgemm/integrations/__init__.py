"""mxgemm inside other libraries: a file for each, imported by whoever has that library."""
