"""The paper's evaluation: every system on the same data, devices and clock."""
