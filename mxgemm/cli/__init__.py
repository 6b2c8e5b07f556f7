"""The commands, a file each: ``run(options)`` works and returns the status. ``mxgemm_cli`` reads their lines."""
