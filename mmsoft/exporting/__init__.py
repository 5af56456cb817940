"""Whole models in one file, which runs without torch and OpenMMLab; ``mmsoft.deploy`` runs it."""
