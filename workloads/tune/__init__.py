"""Search for hyperparameters: `tune` and `sweep` run trials, each the `train` command, in processes that are kept."""
