"""The ServerApp that Flower starts; its code is in `dpfact_flower`."""

from dpfact_flower.server_app import app

__all__ = ["app"]
