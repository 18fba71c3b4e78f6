"""Functions that the pipelines of all kinds of data share."""
