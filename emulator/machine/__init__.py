"""What is on this machine: the state's folders, processes and the user's belongings."""
