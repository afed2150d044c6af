"""Who may do what: the access rules at work, and a guard in front of every handler."""
