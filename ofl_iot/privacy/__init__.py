"""What leaves a device costs privacy: events, the accountant, the ledger and the noise. Pure but for entropy."""
