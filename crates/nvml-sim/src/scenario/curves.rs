//! How a quantity that changes over time is written in a scenario: one value, or phases one after the other.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::units::{Size, Span};

/// A quantity that a curve can describe.
pub(crate) trait Quantity: for<'de> Deserialize<'de> {
    /// What a single value looks like, for messages.
    const FORM: &'static str;
    /// The plain number.
    fn number(&self) -> f64;
    /// From a TOML string.
    fn from_text(text: &str) -> Option<Self>;
    /// From a TOML number.
    fn from_number(number: f64) -> Option<Self>;
}

impl Quantity for Size {
    const FORM: &'static str = "a size like \"4GiB\"";

    fn number(&self) -> f64 {
        self.0 as f64
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    fn from_number(_: f64) -> Option<Self> {
        None
    }
}

/// A share, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio(f64);

impl Quantity for Ratio {
    const FORM: &'static str = "a number from 0 to 1";

    fn number(&self) -> f64 {
        self.0
    }

    fn from_text(_: &str) -> Option<Self> {
        None
    }

    fn from_number(number: f64) -> Option<Self> {
        (0.0..=1.0).contains(&number).then_some(Self(number))
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::from_number(number).ok_or_else(|| D::Error::custom(format_args!("{number} is not {}", Self::FORM)))
    }
}

/// One phase. `for` is how long it lasts; if `for` is absent, the phase does not end.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
#[serde(bound(deserialize = "V: Quantity"))]
pub(crate) enum Phase<V> {
    /// One value.
    Constant {
        value: V,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// A straight line over the whole phase.
    Ramp {
        from: V,
        to: V,
        #[serde(rename = "for")]
        lasts: Span,
    },
    /// A staircase.
    Step {
        from: V,
        by: V,
        every: Span,
        limit: Option<V>,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// Short peaks: the first one `after` the start of the phase, then one `every` interval, each delayed by up to
    /// `jitter`.
    Spike {
        base: V,
        peak: V,
        hold: Span,
        every: Option<Span>,
        after: Option<Span>,
        jitter: Option<Span>,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// Grows by `rate` a second up to `limit`.
    Leak {
        base: V,
        rate: V,
        limit: Option<V>,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// Grows from low to high and drops at once, repeatedly.
    Sawtooth {
        low: V,
        high: V,
        every: Span,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// A cosine from low up to high and back to low.
    Wave {
        low: V,
        high: V,
        every: Span,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
    /// A different value between low and high in each interval.
    Noise {
        low: V,
        high: V,
        every: Span,
        #[serde(rename = "for")]
        lasts: Option<Span>,
    },
}

/// A quantity as it is written in a scenario.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Curve<V> {
    /// NVML does not report it (memory only).
    Unknown,
    /// Phases; a single value is one constant phase.
    Phases(Vec<Phase<V>>),
}

struct CurveVisitor<V>(PhantomData<V>);

fn single<V: Quantity, E: Error>(value: Option<V>, written: &dyn fmt::Display) -> Result<Curve<V>, E> {
    let value = value.ok_or_else(|| E::custom(format_args!("`{written}` is not {}", V::FORM)))?;
    Ok(Curve::Phases(vec![Phase::Constant { value, lasts: None }]))
}

impl<'de, V: Quantity> Visitor<'de> for CurveVisitor<V> {
    type Value = Curve<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of phases", V::FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Curve<V>, E> {
        if text == "unknown" { Ok(Curve::Unknown) } else { single(V::from_text(text), &text) }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Curve<V>, E> {
        single(V::from_number(number), &number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Curve<V>, E> {
        single(V::from_number(number as f64), &number)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Curve<V>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Curve::Phases)
    }
}

impl<'de, V: Quantity> Deserialize<'de> for Curve<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CurveVisitor(PhantomData))
    }
}
