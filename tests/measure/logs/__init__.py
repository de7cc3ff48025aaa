"""Start-up logs: read, predicted, explained."""
