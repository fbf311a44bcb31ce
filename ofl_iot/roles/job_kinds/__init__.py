"""Every kind of job that a machine asks for; `ofl_iot/jobs` computes them.

Importing any of them loads all, so that `base.every_job` leaves none out.
"""

from ofl_iot.roles.job_kinds import base, device, keys, lean, rounds

__all__ = ["base", "device", "keys", "lean", "rounds"]
