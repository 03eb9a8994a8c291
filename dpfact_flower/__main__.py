"""Let ``python -m dpfact_flower`` run `dpfact`, in case the `dpfact` script is not on the path."""

from dpfact_flower.cli.main import main

if __name__ == "__main__":
    main()
