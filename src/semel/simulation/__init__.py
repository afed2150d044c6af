"""A world of its own for the product's code: time, faults and chance come from a seed."""
