"""`cutwater plan --against`: what becomes of a pipeline's last checkpoint in code as it is now.

Reads the manifest and asks Spark what the steps are; starts nothing and writes nothing.
"""

from collections.abc import Mapping

from cutwater.cli.commands.change_text import change_json, change_lines
from cutwater.cli.commands.plan import PlanArguments, PlanOutput
from cutwater.cli.commands.run import DEFAULT_STORE
from cutwater.cli.output import FAILED, SUCCESS, say, say_json
from cutwater.errors import ConfigError
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.protocol.cut import Cut
from cutwater.protocol.evolution.mapping import Allowances, map_cut
from cutwater.store.backends.location import existing_backend
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import identify


def show_change(
    planned: PhysicalPlan, arguments: PlanArguments, name: str, conf: Mapping[str, str]
) -> int:
    """Show what becomes of the checkpoint; return an exit code that says whether it can be.

    Args:
        planned: The pipeline as it is now.
        arguments: What the command was asked.
        name: The pipeline in the store.
        conf: Settings of Spark's.

    Raises:
        ConfigError: If there is no such pipeline, or it has no checkpoint.
        PlanError: If the pipeline cannot run on Spark.
        StoreError: If the store or the checkpoint cannot be read.
    """
    cut = _last_cut(arguments.store or DEFAULT_STORE, name)
    from cutwater.spark.analysis.explain import identities  # noqa: PLC0415 - plans without Spark
    from cutwater.spark.session.session import embedded_session  # noqa: PLC0415 - as above

    allowed = Allowances(
        new=arguments.allow_new,
        dropped=arguments.allow_dropped,
        swap=frozenset(arguments.swap),
    )
    spark = embedded_session(arguments.master, app_name="cutwater plan", conf=conf)
    change = map_cut(cut, identities(planned, spark), allowed)
    if arguments.output is PlanOutput.JSON:
        say_json(change_json(change), indent=2)
    else:
        say(f"checkpoint {cut.checkpoint_id} of {name}, in the pipeline as it is now:")
        for line in change_lines(change):
            say(f"  {line}")
    return FAILED if change.refusals else SUCCESS


def _last_cut(store: str, name: str) -> Cut:
    backend = existing_backend(store)
    name, pipeline = identify(backend, name, "--against")
    opened = PipelineStore.of(backend, pipeline)
    head = opened.log.read().head
    if head is None:
        raise ConfigError("--against", f"{name} has no checkpoint: whatever runs begins empty")
    return opened.manifests.read(head.checkpoint_id, head.manifest_sha256)
