"""Triton kernels for GPUs, imported only once the dispatcher has found Triton and a GPU that it supports."""
