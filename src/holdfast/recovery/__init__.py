"""How lost state comes back: policies of a job."""
