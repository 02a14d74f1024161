"""The sinks of Cutwater; its modules say what each is for."""
