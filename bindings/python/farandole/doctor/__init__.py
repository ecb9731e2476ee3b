"""The checks of `farandole doctor` that need Python."""
