"""The coordinator machine and its parts: rounds, clusters, roster, global model, claim, takeover."""
