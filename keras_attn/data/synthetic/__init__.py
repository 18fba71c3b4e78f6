"""Generated data, whose ground truth is known exactly."""
