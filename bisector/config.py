"""Reads suite files and `bisector.toml` into typed settings; says which key is wrong, and the nearest right one."""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from bisector.errors import BisectorError
from bisector.model import METRICS, Config, Event, Identity, Tolerances

BUILT_IN_SUITES = {"h100": "invariants.toml", "tiny": "tiny.toml"}
Device = Literal["cpu", "cuda", "any"]


def references_dir() -> Path:
    """Return the directory of the built-in suites and references, in a wheel or in a checkout."""
    package = Path(__file__).parent
    inside = package / "references"
    return inside if inside.is_dir() else package.parent / "references"


class _Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pass


Limit = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Word = Annotated[str, Meta(min_length=1)]
Scalar = str | bool | int | float
Parsed = TypeVar("Parsed", bound=_Table)


class _Limits(_Table, frozen=True):
    loss: Limit
    grad_norm: Limit


class _Identity(_Table, frozen=True):
    metric: Literal["loss", "grad_norm"]
    step: Positive
    equals: float
    within: Limit


class _Member(_Table, frozen=True):
    args: dict[str, Scalar] = {}
    num_processes: Positive = 1
    launch: list[str] = []
    requires: list[str] = []


class _Class(_Table, frozen=True):
    canonical: str
    tol: _Limits
    residual_tol: _Limits
    members: dict[str, dict[str, Any]]  # each a `_Member`
    method: Word | None = None
    script: Annotated[str, Meta(pattern=r"^[^/.][^/]*(/[^/.][^/]*)*$")] | None = None
    identities: list[_Identity] = []
    args: dict[str, Scalar] = {}
    requires: list[str] = []
    members_agree: bool = False
    footprint: bool = False


class _SuiteFile(_Table, frozen=True):
    classes: dict[str, dict[str, Any]] = msgspec.field(name="class")  # each a `_Class`
    device: Device = "any"


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


def _configs(suite: str, path: Path, class_name: str, found: object) -> list[Config]:
    where = f"{path}: class.{class_name}"
    table = _convert(found, _Class, path, "class", class_name)
    members = {
        name: _convert(member, _Member, path, "class", class_name, "members", name)
        for name, member in table.members.items()
    }
    if (table.method is None) == (table.script is None):
        raise BisectorError(f"{where} needs either `method` or `script`.", "Give one of the two.")
    if table.canonical not in table.members:
        raise BisectorError(
            f"{where}.canonical names {table.canonical!r}, which is no member.",
            f"{_nearest(table.canonical, table.members)}Members: {', '.join(table.members)}.",
        )
    for requirement in (*table.requires, *(r for m in members.values() for r in m.requires)):
        if not re.fullmatch(r"cuda|bf16|flash-attention|devices:[1-9]\d*", requirement):
            raise BisectorError(
                f"{where} requires {requirement!r}, which is unknown.",
                'Use "cuda", "bf16", "flash-attention" or "devices:N".',
            )
    return [_config(suite, class_name, table, name, member) for name, member in members.items()]


def _config(suite: str, class_name: str, table: _Class, name: str, member: _Member) -> Config:
    args = {key: str(value) for key, value in {**table.args, **member.args}.items()}
    launch = list(member.launch)
    if member.num_processes > 1:
        launch = ["--num_processes", str(member.num_processes), *launch]
    tolerances = Tolerances(asdict(table.tol), asdict(table.residual_tol))
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
        identities=tuple(Identity(**asdict(identity)) for identity in table.identities),
        has_footprint=table.footprint,
        agrees_with=table.canonical if table.members_agree and name != table.canonical else "",
        digest=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
    )


# Settings


class Seconds(int):
    """A duration, written `30s`, `5m`, `6h` or `7d`."""

    @classmethod
    def read(cls, value: object) -> "Seconds":
        """Return it from a file's value."""
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        match = re.fullmatch(r"(\d+)([smhd])", value) if isinstance(value, str) else None
        if match is None or not int(match[1]):
            raise ValueError("must be a duration such as 30s, 5m, 6h or 7d")
        return cls(int(match[1]) * units[match[2]])


class Bytes(int):
    """A size, written `50GB`."""

    @classmethod
    def read(cls, value: object) -> "Bytes":
        """Return it from a file's value."""
        units = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
        match = re.fullmatch(r"(\d+)([MGT]B)", value) if isinstance(value, str) else None
        if match is None or not int(match[1]):
            raise ValueError("must be a size such as 50GB")
        return cls(int(match[1]) * units[match[2]])


class WatchSettings(_Table, frozen=True):
    """What `watch` follows, and how often; `why`: whether it asks what in a new environment moved a config."""

    repository: str = "https://github.com/huggingface/trl"
    branch: str = "main"
    interval: Seconds = Seconds(300)
    suite: str = ""  # empty: h100 where there is CUDA, else tiny
    configs: list[str] = []
    max_backlog: Positive = 20
    heartbeat: Seconds = Seconds(7 * 86400)
    why: bool = True


class TrainSettings(_Table, frozen=True):
    """Where and how long a run may train; `jobs` 0 means what the machine holds.

    `warm`: whether runs may be forked from a process that has imported the training stack.
    """

    python: str = ""
    devices: Literal["all", "cpu"] | list[int] = "all"
    jobs: Count = 0
    footprints: bool = True
    recall: bool = True
    timeout: Seconds = Seconds(1800)
    warm: bool = True


class LimitSettings(_Table, frozen=True):
    """What the service may spend a day; 0 means no limit."""

    gpu_minutes_per_day: Count = 0
    hunts_per_day: Count = 0


class StateSettings(_Table, frozen=True):
    """Where everything is kept that the program writes."""

    dir: str = "state"
    max_size: Bytes = Bytes(50 * 10**9)


class ChannelSettings(_Table, frozen=True):
    """One place to which messages go; `events` empty means all."""

    name: Word
    kind: Literal["slack", "json", "exec"]
    url: str = ""
    url_file: str = ""
    url_env: str = ""
    secret_file: str = ""
    command: list[str] = []
    events: list[str] = []

    def __post_init__(self) -> None:
        known = [str(event) for event in Event]
        for word in self.events:
            if word not in known:
                nearest = _nearest(word, known)
                raise ValueError(
                    f"{word!r} is no event. {nearest}The events are {', '.join(known)}"
                )

    def __repr__(self) -> str:
        return f"<channel {self.name}>"  # its URL may hold a password


class Settings(_Table, frozen=True):
    """The whole of `bisector.toml`."""

    watch: WatchSettings = WatchSettings()
    train: TrainSettings = TrainSettings()
    limits: LimitSettings = LimitSettings()
    state: StateSettings = StateSettings()
    notify: list[ChannelSettings] = []

    def __post_init__(self) -> None:
        names = [channel.name for channel in self.notify]
        for repeated in (name for name in names if names.count(name) > 1):
            raise ValueError(f"two channels are named {repeated!r}")


def load_settings(path: Path | None) -> Settings:
    """Return the settings in the file, or the defaults without one."""
    return _parse(path, Settings) if path else Settings()


def _parse(path: Path, kind: type[Parsed]) -> Parsed:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BisectorError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BisectorError(f"{path} cannot be read: {error}.", "Check the file.") from None
    except tomllib.TOMLDecodeError as error:
        raise BisectorError(f"{path} is not TOML: {error}.", "Mend that line.") from None
    return _convert(found, kind, path)


def _convert(value: object, kind: type[Parsed], path: Path, *place: str) -> Parsed:
    """Return a table as `kind`; `place` is where in the file it stands."""
    try:
        return msgspec.convert(value, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        message, _, inside = str(error).partition(" - at `$")
        parts = re.findall(r"[\w-]+", inside.rstrip("`"))
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
        if unknown is None:
            where = ".".join([*place, *parts]) or "the file"
            is_word = message.startswith("Invalid enum value")
            remedy = _choices(_type_at(kind, parts)) if is_word else "Mend that value."
            raise BisectorError(f"{path}: {where}: {_in_words(message)}.", remedy) from None
        where = ".".join([*place, *parts, unknown[1]])
        known = [field.encode_name for field in msgspec.structs.fields(_type_at(kind, parts))]
        remedy = f"{_nearest(unknown[1], known)}Known keys: {', '.join(known)}."
        raise BisectorError(f"{path}: {where} is not a known key.", remedy) from None


def _in_words(message: str) -> str:
    """Return what msgspec says of a value, in the words of TOML."""
    message = message[0].lower() + message[1:]
    message = message.replace("object missing required field", "this table lacks the key")
    message = message.replace("`object`", "a table").replace("`array`", "a list")
    return message.replace("invalid enum value", "unknown value")


def _read(kind: type, value: object) -> object:
    """Return a value of one of the kinds that only a settings file has."""
    return kind.read(value)  # type: ignore[attr-defined]


def _type_at(kind: Any, parts: Sequence[str]) -> Any:
    """Return the type of the place inside `kind`."""
    for part in parts:
        is_item = part.isdigit()
        if not is_item:
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
            kind = fields[part]
        elif get_origin(kind) is list:
            (kind,) = get_args(kind)
    return kind


def _choices(kind: Any) -> str:
    """Return a sentence with the words that a value may be."""
    literals = [each for each in (kind, *get_args(kind)) if get_origin(each) is Literal]
    words = [f'"{word}"' for each in literals for word in get_args(each)]
    return f"Use {', '.join(words[:-1])} or {words[-1]}."


def _nearest(word: str, known: Any) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean {found[0]!r}? " if found else ""


assert set(METRICS) == set(_Limits.__struct_fields__)
