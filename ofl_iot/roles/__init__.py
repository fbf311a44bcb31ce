"""The device, leader and coordinator machines: events in, commands out, no input or output of their own."""
