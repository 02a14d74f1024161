"""What Cutwater knows of Kafka without Spark.

Offsets as a checkpoint holds them, what a broker is asked, and how a command reaches one.
"""
