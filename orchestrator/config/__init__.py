"""From overrides to the resolved experiment: Hydra, and errors that name the key and what is allowed."""
