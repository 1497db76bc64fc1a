"""Validates demonstrations by rules: boolean columns of three flat tables, checked by Great
Expectations."""
