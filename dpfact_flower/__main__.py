"""``python -m dpfact_flower``: the `dpfact` command, for use when its script is not on the path."""

from dpfact_flower.cli.main import main

if __name__ == "__main__":
    main()
