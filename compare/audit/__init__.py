"""What the configuration and the weights say before any tensor moves."""
