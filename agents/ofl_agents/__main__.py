"""`python -m ofl_agents` is the `ofl` command."""

import sys

from ofl_agents.cli import main

sys.exit(main())
