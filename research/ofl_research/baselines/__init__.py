"""The systems that the paper compares with, as machines without I/O on the same virtual runtime, devices and clock.

| system | module | devices send |
| --- | --- | --- |
| FedAvg | `fedavg` | the whole model, every round |
| CFL | `cfl` | the same; clusters split by the direction of updates |
| IFCA | `ifca` | the same; they get all models and train the one with the least loss |
| RFL-HA | `rfl_ha` | the whole model to the head of their cluster, which sends one to the server |
| AHFL, a stand-in | `ahfl` | the same at any time, with noise |
| FLDP | `fldp` | the whole model hidden in LWE samples, and shares of the secret |
| FedPHE | `fedphe` | a fifth of the model, as ciphertexts |

Asteroid is not among them: it trains one model on pooled data by cutting its layers over trusted devices (pipeline
parallelism). No data stays at home and nothing is aggregated, so there is no federation to compare.

None of them recovers from lost messages: they are run without faults.
"""
