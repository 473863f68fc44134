"""The policy document: read, checked, compiled, and kept fresh."""
