"""The session that both front ends share."""
