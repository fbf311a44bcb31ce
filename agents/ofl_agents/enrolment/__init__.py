"""Enrolment: the authority's folder, the service that admits devices, and the device's side of it."""
