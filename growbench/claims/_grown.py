"""The arms that several claims speak of."""

from growbench.evidence import Evidence


def mission(evidence: Evidence) -> list[str]:
    """The strategies that the critical review names, each at its defaults, growing all that the ladder grows."""
    names = "zero_pad", "net2net", "orthogonal"
    padded = evidence.together(*({"strategy": name} for name in names), placement="ffn", nonlinearity="gelu")
    return [*padded, tokens(evidence)]


def tokens(evidence: Evidence) -> str:
    """Zero-init parameter tokens on the TokenFormer."""
    return evidence.arm("zero_tokens", placement="everywhere", nonlinearity="l2_gelu")
