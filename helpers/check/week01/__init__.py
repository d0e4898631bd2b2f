"""A mean over ranks, collectives made from messages, the ring, bytes on the wire."""
