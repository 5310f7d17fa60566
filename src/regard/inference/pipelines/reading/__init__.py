"""Models while they read: examples of any kind, the activations at a place, and the loss that follows from them."""
