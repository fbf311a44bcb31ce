"""The dashboard: a web page that shows a fleet view and follows its changes. It decides nothing of its own."""
