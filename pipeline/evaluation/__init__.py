"""How good the decisions are: experiments on labelled photos, and the calibration that follows from them."""
