"""Run the `dpfact` command as ``python -m dpfact_flower`` if its script is not on the path."""

from dpfact_flower.cli.main import main

if __name__ == "__main__":
    main()
