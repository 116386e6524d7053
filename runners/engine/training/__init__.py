"""What it takes to train the miniature drafters: prompts, the target's own text, the loss."""
