"""Who is asking: `scram` holds both halves of SCRAM."""
