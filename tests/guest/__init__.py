"""The guest side: the SDK, the agent and the single file."""
