"""``python -m dpfact_flower``: the `dpfact` command, where its script is not on the path."""

from dpfact_flower.cli.main import main

if __name__ == "__main__":
    main()
