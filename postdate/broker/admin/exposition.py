"""Prometheus' text format: samples in, lines out, some hundred at a time.

Numbers and labels are written byte for byte as the Prometheus client library writes them. The library itself makes a
dictionary and two objects for each sample and returns the whole text at once. Here labels are text from the beginning,
and the lines of one metric come in chunks, so that the event loop can serve other connections between two chunks.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple

from prometheus_client.utils import floatToGoString

Labels = Mapping[str, str]
Sample = tuple[str, float]
"""Labels as text, and the value."""

NO_LABELS: Final[Labels] = MappingProxyType({})

LINES_AT_A_TIME: Final = 500
"""Lines of one chunk: half a millisecond of work, and some 64 KB."""


def label_text(labels: Labels) -> str:
    """Return labels as they stand in a line.

    >>> label_text({"topic": "a", "cluster": "c"})
    '{cluster="c",topic="a"}'
    """
    return "{" + ",".join([f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)]) + "}"


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escaped(value: str) -> str:
    if "\\" in value or "\n" in value or '"' in value:
        value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def family(name: str, documentation: str, samples: Iterable[Sample]) -> Iterator[bytes]:
    """Write a metric with its samples; a name that ends in `_total` makes it a counter."""
    is_counter = name.endswith("_total") and not name.endswith("bucket_total")
    yield f"# HELP {name} {documentation}\n# TYPE {name} {'counter' if is_counter else 'gauge'}\n".encode()
    remaining = iter(samples)
    while some := list(islice(remaining, LINES_AT_A_TIME)):
        lines = [f"{name}{labels} {_number(value) if value else '0.0'}\n" for labels, value in some]
        yield "".join(lines).encode()


class Samples:
    """Samples in columns."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._values = array("d")

    def __iter__(self) -> Iterator[Sample]:
        return zip(self._labels, self._values, strict=True)

    def add(self, labels: str, value: float) -> None:
        """Add a sample."""
        self._labels.append(labels)
        self._values.append(value)


class LabelTexts(NamedTuple):
    """The labels of a figure, and those of the sums in which it counts; as text, which many metrics share."""

    namespace: str
    topic: str | None
    """None where topics have no series."""
    subscription: str | None
    """None for a figure of a topic or a namespace."""


def label_texts(at: Labels, more: Labels = NO_LABELS) -> LabelTexts:
    """Return the texts for a subscription, a topic or a namespace.

    Args:
        at: Its labels.
        more: Labels that stay in the sums.

    >>> label_texts({"namespace": "n", "topic": "t"}, {"type": "load"}).namespace
    '{namespace="n",type="load"}'
    """
    return LabelTexts(
        label_text({**_without(at, "subscription", "topic"), **more}),
        label_text({**_without(at, "subscription"), **more}) if "topic" in at else None,
        label_text({**at, **more}) if "subscription" in at else None,
    )


class SummedSamples:
    """Samples of subscriptions, and their sums for each topic and each namespace before them.

    A sample of a topic (its shared index, or its deleted subscriptions) counts in the sums and has no line of its own.
    """

    def __init__(self) -> None:
        self._namespaces: dict[str, float] = {}
        self._topics: dict[str, float] = {}
        self._subscriptions = Samples()

    def __iter__(self) -> Iterator[Sample]:
        return chain(self._namespaces.items(), self._topics.items(), self._subscriptions)

    def add(self, texts: LabelTexts, value: float) -> None:
        """Take the sample of a subscription, a topic or a namespace."""
        namespace, topic, subscription = texts
        if subscription is not None:
            self._subscriptions.add(subscription, value)
        if topic is not None:
            self._topics[topic] = self._topics.get(topic, 0.0) + value
        self._namespaces[namespace] = self._namespaces.get(namespace, 0.0) + value


def _without(labels: Labels, *left_out: str) -> Labels:
    return {name: value for name, value in labels.items() if name not in left_out}
