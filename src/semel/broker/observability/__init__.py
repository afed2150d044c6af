"""What an operator looks at: metrics, their HTTP endpoint, request times, the audit log."""
