"""Reads suite files and `bisector.toml` into typed settings; says which key is wrong, and the nearest right one."""

import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from bisector.errors import BisectorError
from bisector.model import METRICS, Config, Event, Identity, Tolerances

BUILT_IN_SUITES = {"h100": "invariants.toml", "tiny": "tiny.toml"}
Device = Literal["cpu", "cuda", "any"]


def references_dir() -> Path:
    """Return the directory of the built-in suites and references, in a wheel or in a checkout."""
    package = Path(__file__).parent
    inside = package / "references"
    return inside if inside.is_dir() else package.parent / "references"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class _Limits(_Table):
    loss: float = Field(ge=0)
    grad_norm: float = Field(ge=0)


class _Identity(_Table):
    metric: Literal["loss", "grad_norm"]
    step: int = Field(ge=1)
    equals: float
    within: float = Field(ge=0)


Parsed = TypeVar("Parsed", bound=BaseModel)
Scalar = str | bool | int | float


class _Member(_Table):
    args: dict[str, Scalar] = {}
    num_processes: int = Field(default=1, ge=1)
    launch: list[str] = []
    requires: list[str] = []


class _Class(_Table):
    method: str | None = Field(default=None, min_length=1)
    script: str | None = Field(default=None, pattern=r"^[^/.][^/]*(/[^/.][^/]*)*$")
    canonical: str
    tol: _Limits
    residual_tol: _Limits
    identities: list[_Identity] = []
    args: dict[str, Scalar] = {}
    requires: list[str] = []
    members_agree: bool = False
    footprint: bool = False
    members: dict[str, _Member]


class _SuiteFile(_Table):
    device: Device = "any"
    classes: dict[str, _Class] = Field(alias="class")


class Suite:
    """A suite's configs by name, in the file's order, and the kind of device that it runs on."""

    def __init__(self, name: str, path: Path, device: Device, configs: list[Config]) -> None:
        self.name, self.path, self.device = name, path, device
        self.configs = {config.name: config for config in configs}

    @property
    def class_names(self) -> list[str]:
        """Return the classes, in the file's order."""
        return list(dict.fromkeys(config.class_name for config in self.configs.values()))

    def canonical(self, class_name: str) -> Config:
        """Return the config that owns the class's reference."""
        return next(
            c for c in self.configs.values() if c.class_name == class_name and c.is_canonical
        )

    def config(self, name: str) -> Config:
        """Return the config of that name; BisectorError names the nearest one."""
        if name not in self.configs:
            raise BisectorError(
                f"suite {self.name} has no config {name!r}.",
                f"{_nearest(name, self.configs)}It has: {', '.join(self.configs)}.",
            )
        return self.configs[name]


def load_suite(name: str) -> Suite:
    """Return a built-in suite, or the one in the TOML file of that path."""
    path = references_dir() / BUILT_IN_SUITES[name] if name in BUILT_IN_SUITES else Path(name)
    if name not in BUILT_IN_SUITES and path.suffix != ".toml":
        raise BisectorError(
            f"{name!r} is not a suite.",
            f"Use {', '.join(BUILT_IN_SUITES)}, or the path of a .toml file.",
        )
    file = _parse(path, _SuiteFile)
    configs = [
        config
        for class_name, table in file.classes.items()
        for config in _configs(name, path, class_name, table)
    ]
    if not configs:
        raise BisectorError(f"{path} has no class with members.", "Write at least one.")
    names = [config.name for config in configs]
    for repeated in (n for n in names if names.count(n) > 1):
        raise BisectorError(
            f"{path}: two classes have a member {repeated!r}.", "Rename one of them."
        )
    return Suite(name, path, file.device, configs)


def _configs(suite: str, path: Path, class_name: str, table: _Class) -> list[Config]:
    where = f"{path}: class.{class_name}"
    if (table.method is None) == (table.script is None):
        raise BisectorError(f"{where} needs either `method` or `script`.", "Give one of the two.")
    if table.canonical not in table.members:
        raise BisectorError(
            f"{where}.canonical names {table.canonical!r}, which is no member.",
            f"{_nearest(table.canonical, table.members)}Members: {', '.join(table.members)}.",
        )
    for requirement in (*table.requires, *(r for m in table.members.values() for r in m.requires)):
        if not re.fullmatch(r"cuda|bf16|flash-attention|devices:[1-9]\d*", requirement):
            raise BisectorError(
                f"{where} requires {requirement!r}, which is unknown.",
                'Use "cuda", "bf16", "flash-attention" or "devices:N".',
            )
    return [_config(suite, class_name, table, name) for name in table.members]


def _config(suite: str, class_name: str, table: _Class, name: str) -> Config:
    member = table.members[name]
    args = {key: str(value) for key, value in {**table.args, **member.args}.items()}
    launch = list(member.launch)
    if member.num_processes > 1:
        launch = ["--num_processes", str(member.num_processes), *launch]
    tolerances = Tolerances(table.tol.model_dump(), table.residual_tol.model_dump())
    content: dict[str, Any] = {
        "method": table.method,
        "script": table.script,
        "args": args,
        "launch": launch,
    }
    return Config(
        name=name,
        suite=suite,
        class_name=class_name,
        is_canonical=name == table.canonical,
        method=table.method,
        script=table.script,
        args=args,
        launch=tuple(launch),
        num_processes=member.num_processes,
        requires=tuple(dict.fromkeys([*table.requires, *member.requires])),
        tolerances=tolerances,
        identities=tuple(Identity(**identity.model_dump()) for identity in table.identities),
        has_footprint=table.footprint,
        agrees_with=table.canonical if table.members_agree and name != table.canonical else "",
        digest=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
    )


# Settings


def _seconds(value: object) -> object:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)([smhd])", value)):
        return int(match[1]) * units[match[2]]
    raise ValueError("must be a duration such as 30s, 5m, 6h or 7d")


def _bytes(value: object) -> object:
    units = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)([MGT]B)", value)):
        return int(match[1]) * units[match[2]]
    raise ValueError("must be a size such as 50GB")


Seconds = Annotated[int, BeforeValidator(_seconds), Field(ge=1)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]


class WatchSettings(_Table):
    """What `watch` follows, and how often; `why`: whether it asks what in a new environment moved a config."""

    repository: str = "https://github.com/huggingface/trl"
    branch: str = "main"
    interval: Seconds = 300
    suite: str = ""  # empty: h100 where there is CUDA, else tiny
    configs: list[str] = []
    max_backlog: int = Field(default=20, ge=1)
    heartbeat: Seconds = 7 * 86400
    why: bool = True


class TrainSettings(_Table):
    """Where and how long a run may train; `jobs` 0 means what the machine holds.

    `warm`: whether runs may be forked from a process that has imported the training stack.
    """

    python: str = ""
    devices: Literal["all", "cpu"] | list[int] = "all"
    jobs: int = Field(default=0, ge=0)
    footprints: bool = True
    recall: bool = True
    timeout: Seconds = 1800
    warm: bool = True


class LimitSettings(_Table):
    """What the service may spend a day; 0 means no limit."""

    gpu_minutes_per_day: int = Field(default=0, ge=0)
    hunts_per_day: int = Field(default=0, ge=0)


class StateSettings(_Table):
    """Where everything is kept that the program writes."""

    dir: str = "state"
    max_size: Bytes = 50 * 10**9


def _event(value: object) -> object:
    known = [str(event) for event in Event]
    if value in known:
        return value
    nearest = _nearest(str(value), known)
    raise ValueError(f"{value!r} is no event. {nearest}The events are {', '.join(known)}")


class ChannelSettings(_Table):
    """One place to which messages go; `events` empty means all."""

    name: str = Field(min_length=1)
    kind: Literal["slack", "json", "exec"]
    url: str = Field(default="", repr=False)  # it may hold the channel's password
    url_file: str = ""
    url_env: str = ""
    secret_file: str = ""
    command: list[str] = []
    events: list[Annotated[Event, BeforeValidator(_event)]] = []


class Settings(_Table):
    """The whole of `bisector.toml`."""

    watch: WatchSettings = WatchSettings()
    train: TrainSettings = TrainSettings()
    limits: LimitSettings = LimitSettings()
    state: StateSettings = StateSettings()
    notify: list[ChannelSettings] = []

    @field_validator("notify")
    @classmethod
    def _names_differ(cls, channels: list[ChannelSettings]) -> list[ChannelSettings]:
        names = [channel.name for channel in channels]
        for repeated in (name for name in names if names.count(name) > 1):
            raise ValueError(f"two channels are named {repeated!r}")
        return channels


def load_settings(path: Path | None) -> Settings:
    """Return the settings in the file, or the defaults without one."""
    return _parse(path, Settings) if path else Settings()


def _parse(path: Path, kind: type[Parsed]) -> Parsed:
    try:
        return kind.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise BisectorError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BisectorError(f"{path} cannot be read: {error}.", "Check the file.") from None
    except tomllib.TOMLDecodeError as error:
        raise BisectorError(f"{path} is not TOML: {error}.", "Mend that line.") from None
    except ValidationError as error:
        # An unknown key first: a key that is said to be missing is often just misspelt.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _keys_at(kind, first["loc"][:-1])
            remedy = f"{_nearest(str(first['loc'][-1]), known)}Known keys: {', '.join(known)}."
            raise BisectorError(f"{path}: {where} is not a known key.", remedy) from None
        message = first["msg"].removeprefix("Value error, ")
        raise BisectorError(f"{path}: {where}: {message}.", "Mend that value.") from None


def _keys_at(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the table at `location` may have."""
    for part in location:
        field = next((f for n, f in kind.model_fields.items() if (f.alias or n) == part), None)
        annotations = [field.annotation] if field else []
        while annotations:
            annotation = annotations.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                kind = annotation
                break
            annotations += getattr(annotation, "__args__", ())
    return [field.alias or name for name, field in kind.model_fields.items()]


def _nearest(word: str, known: Any) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean {found[0]!r}? " if found else ""


assert set(METRICS) == set(_Limits.model_fields)
