"""Reading files that may be damaged, and writing files that are whole."""
