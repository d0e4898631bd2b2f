"""The licence of each data set: what its owners let you do with its text or pictures.

Each is named by its SPDX identifier (spdx.org/licenses), with the owner and where the licence is
written. Only WikiText and MNIST are downloaded; the others are part of what is installed.
"""

LICENCES = {
    "python": "PSF-2.0, Python Software Foundation: docs.python.org/3/license.html",
    "wikitext": "CC-BY-SA-3.0 or GFDL, the authors of Wikipedia: the data set's page on the Hub",
    "sklearn": (
        "CC-BY-4.0, E. Alpaydin and C. Kaynak: UCI Machine Learning Repository, "
        "Optical Recognition of Handwritten Digits (doi.org/10.24432/C50P49)"
    ),
    "mnist": "MIT, Y. LeCun, C. Cortes and C. J. C. Burges: the data set's page on the Hub",
}


def identifier(name: str) -> str | None:
    """The SPDX identifier of a data set's licence; None for texts of your own."""
    return LICENCES[name].split(",")[0] if name in LICENCES else None
