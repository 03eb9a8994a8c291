"""The ClientApp that Flower starts; its code is in `dpfact_flower`."""

from dpfact_flower.client_app import app

__all__ = ["app"]
