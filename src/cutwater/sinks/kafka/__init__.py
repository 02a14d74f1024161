"""The Kafka sink: rows are staged as files, and written in a transaction after the decision.

`target` is what a user names, `topic` the sink in use, `transactions` the producer, `progress` what
Kafka itself knows about the slots, `records` the rows, `settings` the options and their secrets.
See docs/reference/sink-kafka.md.
"""
