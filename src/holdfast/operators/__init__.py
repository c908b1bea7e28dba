"""What runs on a slice: aggregate."""
