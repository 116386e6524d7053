"""Servers in containers: where the engine is reached, how a container is made, watched and removed."""
