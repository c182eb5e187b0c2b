"""Search for hyperparameters: `tune` and `sweep` run trials, each the `train` command in a process of its own."""
