"""What real systems say: logs, servers, snapshots, out-of-memory texts, and the probe."""
