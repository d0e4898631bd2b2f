"""The models of the course: short to read, with exact counts, and without any distribution."""
