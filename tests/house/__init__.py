"""House rules, as tests: what must hold of the project as a whole."""
