"""What carries out the commands of the role machines: stores, settings, the live and the virtual runtime."""
