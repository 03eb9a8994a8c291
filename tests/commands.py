"""The command `dpfact`, run in this process."""

from typer.testing import CliRunner

from dpfact_flower.cli import app


def dpfact(*words: object, code: int = 0, answer: str | None = None, width: int = 80) -> str:
    """Return a command's output, and check its exit code. Unexpected errors are raised."""
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(app, [*map(str, words)], input=answer)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output
