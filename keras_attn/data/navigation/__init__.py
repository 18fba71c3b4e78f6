"""Buildings, and instructions for walks through them."""
