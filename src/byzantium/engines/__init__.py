"""Where rules meet real federations. An engine is imported by its name, when it is used."""

__all__: list[str] = []
