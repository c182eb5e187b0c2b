"""What this machine keeps: the state's folders, processes and what belongs to the user."""
