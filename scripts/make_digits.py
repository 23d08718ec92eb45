"""Writes src/byzantium/data/digits.npz from scikit-learn's copy of the UCI digits.

Run it once, in a separate environment: `pip install scikit-learn numpy`, then this script. The
library itself never needs scikit-learn.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
1998, https://doi.org/10.24432/C50P49, CC BY 4.0. These are the 1797 images of its test set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parents[1] / "src" / "byzantium" / "data" / "digits.npz"

if __name__ == "__main__":
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    assert (images == digits.images).all()  # integers from 0 to 16: nothing is lost
    np.savez_compressed(TARGET, images=images, labels=digits.target.astype(np.uint8))
    print(f"{TARGET.name}: {len(images)} images, {TARGET.stat().st_size} bytes")
