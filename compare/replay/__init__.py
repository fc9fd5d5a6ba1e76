"""The draft by itself: its forward in plain torch on stored hidden states."""
