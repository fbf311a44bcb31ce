"""How messages travel: the Link protocol and what implements it."""
