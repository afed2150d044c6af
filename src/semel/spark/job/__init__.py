"""A pipeline as a file: `semel pipeline init`, `check` and `run`.

`file` reads a pipeline.toml and lists its mistakes. `building` makes the Spark session and the DataFrames. `checking`
compares all of it with the brokers and writes nothing. `running` runs the query until it ends or is told to.
"""
