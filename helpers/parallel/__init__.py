"""The Strategy protocol, and one file or folder for each strategy."""
