"""Galleries for agents: a server of the Model Context Protocol."""
