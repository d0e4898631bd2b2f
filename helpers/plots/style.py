"""Colours that mean the same in every figure."""

# By rank; distinguishable for the colour-blind (Okabe and Ito, 2008), in an order for four ranks.
RANK_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#999933",
    "#666666",
)
