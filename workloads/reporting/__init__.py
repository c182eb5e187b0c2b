"""Progress in the terminal, the journal of a run, the curve, and Weights & Biases."""
