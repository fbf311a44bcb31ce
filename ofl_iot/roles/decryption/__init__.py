"""Threshold decryption: the requester, the share collector, the independent decryptor."""
