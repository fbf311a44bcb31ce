"""Programs on devices and on the coordinator's machine."""

import os

# Matrices here are small: a second thread of OpenBLAS costs several times what it saves. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
