"""Running and measuring models."""
