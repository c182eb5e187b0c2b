"""The commands of `python -m oasis_stack`: what a person does to a stack besides `pulumi up`."""
