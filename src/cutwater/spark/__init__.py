"""The spark of Cutwater; its modules say what each is for."""
