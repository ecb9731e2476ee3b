"""What the modules of several frameworks share."""
