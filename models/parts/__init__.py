"""Parts that several model families share."""
