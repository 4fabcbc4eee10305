"""Traces and metrics by OTLP, with OpenTelemetry's conventions for generative AI."""
