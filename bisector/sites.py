"""Where a run is made: the commit that is checked out, and the interpreter that trains it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisector.envs import Built, Environments, Refused
from bisector.model import Config, Environment
from bisector.releases import check_reachable
from bisector.session import Session


@dataclass(frozen=True, slots=True)
class Site:
    """The commit to check out, and the versions to install in place of what the training interpreter has."""

    commit: str
    pins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stand:
    """An interpreter that is there, and the environment that it makes for a config."""

    python: str
    environment: Environment


class Sites:
    """The interpreters of a session's runs; those with other versions are built when they are asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._environments: Environments | None = None

    def ask(self, pins: Mapping[str, str], config: Config) -> Stand | Refused | None:
        """Return the interpreter with those versions, or why there is none; None: it is being built.

        Raises InfraError where an index cannot be reached."""
        session = self._session
        if not pins:
            return Stand(session.python, session.environment_of(config))
        if self._environments is None:
            packages = session.described["packages"]
            self._environments = Environments(session.state, session.python, packages)
        built = self._environments.ask(pins)
        if isinstance(built, Refused):
            check_reachable()  # else it says nothing of the versions
        if not isinstance(built, Built):
            return built
        python = str(built.python)
        return Stand(python, session.environment_of(config, python))

    def close(self) -> None:
        """End what is being built."""
        if self._environments:
            self._environments.close()
