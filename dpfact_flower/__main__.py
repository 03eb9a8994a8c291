"""Make ``python -m dpfact_flower`` equivalent to the `dpfact` command."""

from dpfact_flower.cli.main import main

if __name__ == "__main__":
    main()
