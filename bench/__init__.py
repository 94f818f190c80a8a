"""Every speed figure the documentation states, as a ratio against a peer measured in the same run."""
