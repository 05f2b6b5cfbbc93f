"""Callbacks for training frameworks: `truestep.checking()` around a training, findings in its log.

Owns nothing: each framework has its module, which alone imports it.
"""
