# SPDX-License-Identifier: MIT
"""The series as samples under their full names: as plain values, and as scrapers read them.

Plain samples can travel. A front end asks each of its engines for theirs, puts those of one name
together, and writes one page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, frozen
from prometheus_client.core import Metric

from tokenspeed_metrics.aliases import Alias
from tokenspeed_metrics.catalogue import Catalogue, Family
from tokenspeed_metrics.series import Counter, Gauge, Histogram, Series

PREFIX = "tokenspeed:"
KINDS: Mapping[type[Series], str] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


@frozen
class Samples:
    """One name's samples: how each one's name ends, its labels, its value."""

    name: str
    kind: str
    meaning: str
    samples: Sequence[Sample]

    def plain(self) -> dict[str, object]:
        """The samples as maps and lists."""
        samples = [[suffix, dict(labels), value] for suffix, labels, value in self.samples]
        return {"name": self.name, "kind": self.kind, "meaning": self.meaning, "samples": samples}


@define(eq=False)
class Exposition:
    """A rank's series as they are now, under their own names and under those of `aliases`.

    It is a collector of `prometheus_client`. `labels` are on every sample.
    """

    catalogue: Catalogue
    labels: Labels
    aliases: Sequence[Alias] = ()

    def samples(self) -> Iterator[Samples]:
        """Everything; may be asked on any thread."""
        self.catalogue.settle()
        for family in self.catalogue:
            samples = self._of(family, bounds=family.form.bounds)
            yield Samples(PREFIX + family.name, KINDS[family.form.kind], family.meaning, samples)
        for alias in self.aliases:
            source = self.catalogue.get(alias.source)
            if source is not None:
                samples = alias.pick(self._of(source, bounds=alias.buckets or source.form.bounds))
                meaning = alias.meaning or source.meaning
                yield Samples(alias.name, KINDS[source.form.kind], meaning, samples)

    def collect(self) -> Iterator[Metric]:
        """Everything, for a registry."""
        for each in self.samples():
            metric = Metric(each.name, each.meaning, each.kind)
            for suffix, labels, value in each.samples:
                metric.add_sample(each.name + suffix, dict(labels), value)
            yield metric

    def _of(self, family: Family, *, bounds: Sequence[float]) -> list[Sample]:
        found: list[Sample] = []
        for values, series in family.series.items():
            own = dict(zip(family.form.label_names, values, strict=True))
            found += _samples(series, {**self.labels, **own}, bounds=bounds)
        return found


def _samples(series: Series, labels: Labels, *, bounds: Sequence[float]) -> Iterator[Sample]:
    if isinstance(series, Histogram):
        counts = series.up_to(bounds)
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            yield "_bucket", {**labels, "le": _upper(bound)}, count
        yield "_sum", labels, series.total
        yield "_count", labels, counts[-1]
    else:
        yield "_total" if isinstance(series, Counter) else "", labels, series.value


def _upper(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
