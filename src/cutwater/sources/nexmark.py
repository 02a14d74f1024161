"""The event stream of the NEXMark benchmark: people open auctions, and people bid.

Of every 50 events the first is a person, the next 3 are auctions and 46 are bids, and everything
about an event follows from its number: kinds and ids by arithmetic, the rest by hashes of the
number and a word. So three sources with the same options are three views of one stream, a row needs
no other row, and every id that a row refers to exists: the generators of Beam and Flink let bids
run up to ten ids ahead of what exists, this one does not. Values have the same distributions as in
those generators, but come from other random numbers.

A source makes the rows of its own kind only: its numbers are ordinals within the kind, its offsets
count events of all kinds.
"""

from dataclasses import dataclass, fields
from typing import Final, Literal, Unpack, get_args

from pyspark.sql import DataFrame, SparkSession

from cutwater.errors import ConfigError
from cutwater.sources.numbered import (
    EVENT_RATE,
    START_TIME,
    Numbered,
    PaceKeywords,
    event_micros,
    numbered_frame,
)

EventKind = Literal["person", "auction", "bid"]
"""What an event is about."""

FIRST_ID: Final = 1_000
"""The id of the first person and of the first auction."""

_ROUND: Final = 50
_FIRST_CATEGORY: Final = 10
_HOT_EVERY: Final = 100  # one person and one auction in so many are the hot ones
_HORIZON_EVENTS: Final = _ROUND / 3  # from one auction to the next, on average


@dataclass(frozen=True, slots=True)
class _Share:
    """The events `first` to `first + size - 1` of every 50, counted from 0."""

    first: int
    size: int

    def rows_before(self, number: int) -> int:
        """Count the events of this kind before an event."""
        rounds, within = divmod(number, _ROUND)
        return rounds * self.size + min(max(within - self.first, 0), self.size)

    @property
    def event(self) -> str:
        """The SQL expression of the number of the id-th event of this kind."""
        return f"id div {self.size} * {_ROUND} + {self.first} + id % {self.size}"

    @property
    def holds(self) -> str:
        """The SQL condition that event number id is of this kind."""
        return f"id % {_ROUND} BETWEEN {self.first} AND {self.first + self.size - 1}"


_SHARES: Final[dict[EventKind, _Share]] = {
    "person": _Share(0, 1),
    "auction": _Share(1, 3),
    "bid": _Share(4, 46),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """How the events cluster; the defaults are the benchmark's own.

    Attributes:
        hot_auction_ratio: All but one in so many bids go to the hot auction of the moment.
        hot_seller_ratio: All but one in so many auctions are the hot seller's.
        hot_bidder_ratio: All but one in so many bids are the hot bidder's.
        active_people: The other sellers and bidders are among so many of the newest people.
        in_flight_auctions: The other bids go to one of so many of the newest auctions and the one
            before them; an auction stays open for about as long as that takes.
    """

    hot_auction_ratio: int = 2
    hot_seller_ratio: int = 4
    hot_bidder_ratio: int = 4
    active_people: int = 1_000
    in_flight_auctions: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value < 2**31:
                raise ConfigError(field.name, f"{value!r} is not a whole number above 0")

    @property
    def active_events(self) -> int:
        """The max number of events, of all kinds, between a person and the last reference to it.

        Divided by the rate, this is how long a join must keep people in its state.
        """
        return _ROUND * max(self.active_people, _HOT_EVERY)


STANDARD: Final = Market()
"""The market of the benchmark."""


def nexmark(
    spark: SparkSession,
    kind: EventKind,
    *,
    start_time: str = START_TIME,
    market: Market = STANDARD,
    **keywords: Unpack[PaceKeywords],
) -> DataFrame:
    """Return a streaming frame of the people, the auctions or the bids of one event stream.

    Args:
        spark: The session that reads it.
        kind: `person`, `auction` or `bid`.
        start_time: The time of event 0, ISO 8601 with a zone; event n is `n / rate` seconds later.
        market: How the events cluster.
        keywords: `rate`, events of all kinds per second (default: as fast as they are read, and
            1,000 a second of event time); `total`, how many events of all kinds there are (default:
            no end); `partitions` of each batch (default: one for each core); `batch_max`, the most
            events of all kinds in one batch (default: 1,000,000).

    Raises:
        ConfigError: If an option cannot work.
    """
    share = _share(kind)
    rate = keywords.get("rate")

    def rows(ordinals: DataFrame) -> DataFrame:
        events = ordinals.selectExpr(f"{share.event} AS n")
        return _rows(events, kind, _Times(rate, start_time), market)

    return numbered_frame(spark, Numbered(f"nexmark {kind}", rows, share.rows_before), **keywords)


def nexmark_rows(
    events: DataFrame,
    kind: EventKind,
    *,
    rate: float | None = None,
    start_time: str = START_TIME,
    market: Market = STANDARD,
) -> DataFrame:
    """Return the rows of those of these events (their numbers in column `id`) that are of a kind.

    The frame may be streaming or not; rows are as `nexmark` makes them, so that
    `nexmark_rows(spark.range(total), "bid")` is all that a source with that total will ever give.

    Raises:
        ConfigError: If an option cannot work.
    """
    chosen = events.where(_share(kind).holds).selectExpr("id AS n")
    return _rows(chosen, kind, _Times(rate, start_time), market)


@dataclass(frozen=True, slots=True)
class _Times:
    rate: float | None
    start_time: str

    @property
    def micros(self) -> str:
        return event_micros("n", self.rate, self.start_time)

    def millis_for(self, count: float) -> int:
        """Return how long so many events take."""
        return int(count * 1000 / (EVENT_RATE if self.rate is None else self.rate))


def _share(kind: EventKind) -> _Share:
    if kind not in _SHARES:
        known = ", ".join(get_args(EventKind))
        raise ConfigError("kind", f"{kind!r} is none of {known}")
    return _SHARES[kind]


def _rows(events: DataFrame, kind: EventKind, times: _Times, market: Market) -> DataFrame:
    """Return the rows of events of one kind, their numbers in column `n`."""
    match kind:
        case "person":
            return _people(events, times)
        case "auction":
            return _auctions(events, times, market)
        case "bid":
            return _bids(events, times, market)


def _people(events: DataFrame, times: _Times) -> DataFrame:
    card = (f"lpad(CAST({_draw(f'card {at}', 10_000)} AS STRING), 4, '0')" for at in range(4))
    return events.selectExpr(
        f"{FIRST_ID} + n div {_ROUND} AS id",
        f"concat({_one_of('first name', _FIRST_NAMES)}, ' ', "
        f"{_one_of('last name', _LAST_NAMES)}) AS name",
        f"concat({_letters('mailbox', 7)}, '@', {_letters('domain', 5)}, '.com') AS emailAddress",
        f"concat_ws(' ', {', '.join(card)}) AS creditCard",
        f"{_one_of('city', _CITIES)} AS city",
        f"{_one_of('state', _STATES)} AS state",
        f"timestamp_micros({times.micros}) AS dateTime",
        f"{_padding(200 - 60)} AS extra",
    )


def _auctions(events: DataFrame, times: _Times, market: Market) -> DataFrame:
    # As long, on average, as it takes to open as many auctions as are in flight.
    horizon = times.millis_for(market.in_flight_auctions * _HORIZON_EVENTS)
    length = f"1000 * (1 + {_draw('length', max(2 * horizon, 1))})"
    return events.selectExpr(
        # An auction's ordinal: three a round, the first of them event 1.
        f"{FIRST_ID} + n div {_ROUND} * 3 + n % {_ROUND} - 1 AS id",
        f"{_letters('item', 20)} AS itemName",
        f"{_letters('description', 100)} AS description",
        f"{_price('first bid')} AS initialBid",
        f"{_price('first bid')} + {_price('reserve')} AS reserve",
        f"timestamp_micros({times.micros}) AS dateTime",
        f"timestamp_micros({times.micros} + {length}) AS expires",
        f"{FIRST_ID} + {_person('seller', market.hot_seller_ratio, 0, market)} AS seller",
        f"{_FIRST_CATEGORY} + {_draw('category', 5)} AS category",
        f"{_padding(500 - 110)} AS extra",
    )


def _bids(events: DataFrame, times: _Times, market: Market) -> DataFrame:
    known = events.selectExpr(
        "n",
        f"CASE WHEN {_draw('hot channel', 2)} > 0 THEN {_one_of('portal', _PORTALS)} "
        f"ELSE concat('channel-', {_draw('channel', 10_000)}) END AS channel",
    )
    last = f"(n div {_ROUND} * 3 + 2)"
    oldest = f"greatest({last} - {market.in_flight_auctions}, 0L)"
    auction = (
        f"CASE WHEN {_draw('hot auction', market.hot_auction_ratio)} > 0 "
        f"THEN {last} div {_HOT_EVERY} * {_HOT_EVERY} "
        f"ELSE {oldest} + {_draw('auction', f'({last} - {oldest} + 1)')} END"
    )
    path = f"translate({_digits('path', 16, 'channel')}, {_AS_LETTERS})"
    folders = ", ".join(f"substring({path}, {at}, 4)" for at in (1, 5, 9))
    numbered = f"channel LIKE 'channel-%' AND {_draw('plain', 10, 'channel')} > 0"
    return known.selectExpr(
        f"{FIRST_ID} + {auction} AS auction",
        # The second of every hundred people, so that hot bidders are not the hot sellers.
        f"{FIRST_ID} + {_person('bidder', market.hot_bidder_ratio, 1, market)} AS bidder",
        f"{_price('price')} AS price",
        "channel",
        f"concat(concat_ws('/', 'https://www.nexmark.com', {folders}, 'item.htm?query=1'), "
        f"CASE WHEN {numbered} THEN concat('&channel_id=', substring(channel, 9)) ELSE '' END) "
        "AS url",
        f"timestamp_micros({times.micros}) AS dateTime",
        f"{_padding(100 - 32)} AS extra",
    )


# -- SQL expressions that draw a value for event `n`, or for another expression


def _draw(word: str, below: int | str, key: str = "n") -> str:
    """Draw a whole number from 0 up to a bound."""
    return f"pmod(xxhash64({key}, '{word}'), {below})"


def _one_of(word: str, values: tuple[str, ...]) -> str:
    """Draw one of some texts."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"elt(CAST(1 + {_draw(word, len(values))} AS INT), {listed})"


def _person(word: str, hot_ratio: int, hot: int, market: Market) -> str:
    """Draw one of the people so far, counted from 0: the hot one of the moment, or an active one.

    The last person so far has the number of the round.
    """
    last = f"(n div {_ROUND})"
    active = f"least({last} + 1, {market.active_people}L)"
    return (
        f"CASE WHEN {_draw(f'hot {word}', hot_ratio)} > 0 "
        f"THEN least({last} div {_HOT_EVERY} * {_HOT_EVERY} + {hot}, {last}) "
        f"ELSE {last} + 1 - {active} + {_draw(word, active)} END"
    )


def _price(word: str) -> str:
    """Draw a price in cents, from 100 to 100,000,000; every power of ten is equally likely."""
    fraction = f"shiftrightunsigned(xxhash64(n, '{word}'), 11) * {2.0**-53!r}D"
    return f"CAST(floor(pow(10.0D, {fraction} * 6.0D) * 100.0D + 0.5D) AS BIGINT)"


def _digits(word: str, count: int, key: str = "n") -> str:
    """Draw so many hexadecimal digits or a few more, each as likely as the next."""
    pieces = (f"hex(xxhash64({key}, '{word} {at}'))" for at in range(-(-count // 16)))
    return f"concat({', '.join(pieces)})"


def _letters(word: str, below: int) -> str:
    """Draw a word of three letters or more."""
    length = f"CAST(3 + {_draw(f'length of {word}', below - 3)} AS INT)"
    return f"translate(substring({_digits(word, below)}, 1, {length}), {_AS_LETTERS})"


def _padding(average: int) -> str:
    """Draw a text of about this length, a fifth more or less, that does not compress well."""
    spread = round(average * 0.2)
    length = f"CAST({average - spread} + {_draw('length of extra', 2 * spread)} AS INT)"
    return f"substring({_digits('extra', average + spread)}, 1, {length})"


_AS_LETTERS: Final = "'0123456789ABCDEF', 'abcdefghijklmnop'"
_FIRST_NAMES: Final = (
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
)
_LAST_NAMES: Final = (
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
)
_CITIES: Final = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_PORTALS: Final = ("Google", "Facebook", "Baidu", "Apple")
