"""The arms that several claims speak of."""

from growbench.claim import Evidence


def mission(evidence: Evidence) -> list[str]:
    """The strategies that the critical review names, each at its defaults, growing all that the ladder grows."""
    return [
        evidence.arm("zero_pad", placement="ffn", nonlinearity="gelu"),
        evidence.arm("net2net", placement="ffn", nonlinearity="gelu"),
        evidence.arm("orthogonal", placement="ffn", nonlinearity="gelu"),
        tokens(evidence),
    ]


def tokens(evidence: Evidence) -> str:
    """Zero-init parameter tokens on the TokenFormer."""
    return evidence.arm("zero_tokens", placement="everywhere", nonlinearity="l2_gelu")
