"""Lean rounds: encrypted sums at 2.6 bytes a parameter that leaders open only for what they signed.

    masks       c_i = m_i + round(p/q·(a_r·k_i + e_i)) mod p, P bits a parameter (after LERNA, Asiacrypt 2023)
    sharing     k_i in Shamir shares; weighted sums of shares; Reed-Solomon decoding names a wrong answer
    quantiser   m_i = round(update / step) with public bounds a block; what rounding and clipping take is returned
    weights     integers 1 to 16 that no contributor dominates
    header      what a leader states about its body, signed
    vouchers    all contributors' signatures on ONE vector of contributors and weights
    sketches    4,096 numbers a model, scored under the term's threshold key, which the masks do not use

`masks`, `sharing` and `sketches` import numba through the kernels; the others are light.
"""
