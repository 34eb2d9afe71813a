"""The exceptions of bisector; what the code under test did is a value, never one of these.

Exception
└── BisectorError       a mistake people can mend           exit 1
    └── InfraError      nothing was observed, try again     exit 4
        └── KilledError     a process of a run was killed
            └── SupervisorKilledError   the one that watches it
BaseException
└── StopError           a signal asked the program to end   exit 130
"""


class BisectorError(Exception):
    """Something its reader can mend: `problem` says what is wrong, `remedy` what to do next."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n{remedy}")
        self.problem = problem
        self.remedy = remedy


class InfraError(BisectorError):
    """The machine failed, not the commit: no observation was made, and state is as it was."""


class KilledError(InfraError):
    """A process of the run was killed; perhaps by a person, perhaps for memory, perhaps by itself."""


class SupervisorKilledError(KilledError):
    """Not the training was killed but what watches it: rarely the commit's doing."""


class StopError(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; no `except Exception` on the way may hold it up."""
