"""The messages of the protocol, one module per family. A message's class, fields and structs have the names of
Kafka's published schema; its versions are those that Kafka 4.3 serves. Import the family you need: all of them at
once cost more time than a broker has at start-up."""
