"""What machines ask to be computed: training, release, ledger, keys, scores, decryption."""
