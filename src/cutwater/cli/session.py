"""The embedded session of a command: started when it is first needed, with all settings.

Most files are loaded without Spark; a declarative project needs it to be loaded, and brings
settings of its own, which must be known before Spark starts.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Prepare = Callable[["SparkSession"], None]
"""Makes the session ready for a pipeline."""


class SessionStarter:
    """Starts the session of a command; calling it again returns the same session."""

    def __init__(
        self,
        master: str,
        app_name: str,
        conf: Mapping[str, str],
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            master: Spark's master.
            app_name: The name of the application.
            conf: The user's own settings.
            announce: Called before Spark starts.
        """
        self._master = master
        self._app_name = app_name
        self.conf = dict(conf)
        self._announce = announce
        self._session: SparkSession | None = None

    def __call__(self) -> "SparkSession":
        """Return the session.

        Raises:
            SessionError: If Spark cannot be started here.
        """
        if self._session is None:
            # Imported here: loading and planning must work without Spark.
            from cutwater.spark.session.session import embedded_session  # noqa: PLC0415

            self._announce()
            self._session = embedded_session(self._master, app_name=self._app_name, conf=self.conf)
        return self._session

    def for_project(self, configuration: Mapping[str, str]) -> "SparkSession":
        """Return the session with the settings of a declarative project, under the user's own."""
        from cutwater.spark.session.session import (  # noqa: PLC0415 - as above
            TIME_ZONE,
            use_machine_zone,
        )

        self.conf = {**configuration, **self.conf}
        session = self()
        if TIME_ZONE not in self.conf:
            use_machine_zone(session)
        return session
