"""Studies that the README reports: attentions in one pyramid, image sizes, gradients of Newton's inverse."""

import argparse


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Tells the defaults of options, and leaves the lines of the description as they are."""
