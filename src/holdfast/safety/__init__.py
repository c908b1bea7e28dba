"""How state is made safe: policies of a job."""
