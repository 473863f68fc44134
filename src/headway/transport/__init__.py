"""The http transports that stand between an openai client and its own http client."""
