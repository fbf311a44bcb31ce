"""The fleet: who learns with whom, who leads, and whose reports are believed. Pure."""
