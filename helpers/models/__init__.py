"""What is trained: models to be read at a sitting, with exact counts, without any distribution."""
