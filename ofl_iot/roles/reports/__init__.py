"""What a party reports: one frozen type for each thing worth a log line, a metric or a place on the display.

A machine yields a report like any other command. `runtime/logs.py` formats it; listeners match on its type.
"""
