"""Define the ServerApp, Flower's entry point on the server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.serve import serve

use_flower_handler()
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run DPFact with the settings in the run config, and write a run folder."""
    serve(grid, RunConfig.read(context.run_config))
