"""Engine lmcache: figures worked out from LMCache's source."""
