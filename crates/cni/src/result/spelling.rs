//! Deserializers for values of a result. They accept the ways in which the Go plugins write an
//! absent value: the index -1 and an empty text.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::Deserialize as _;
use serde::de::{self, Deserializer, Visitor};

/// Reads the index of an interface. Returns `None` for `null` and for a negative index. The Go
/// plugins write -1 if there is no interface.
pub(super) fn index<'de, D: Deserializer<'de>>(value: D) -> Result<Option<usize>, D::Error> {
    let index = Option::<i64>::deserialize(value)?;
    Ok(index.and_then(|index| usize::try_from(index).ok()))
}

/// Parses a text as `T`. Returns `None` for an empty text, because the Go plugins write an absent
/// value as an empty text.
pub(super) fn text<'de, D, T>(value: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    value.deserialize_str(Text(PhantomData))
}

/// Parses a CIDR; an empty text is an error.
pub(super) fn cidr<'de, D: Deserializer<'de>>(value: D) -> Result<IpNetwork, D::Error> {
    text(value)?.ok_or_else(|| de::Error::custom("a CIDR is empty"))
}

/// The serde visitor of [`text`]. It parses the text itself, because [`crate::json::read`] adds the
/// path of the value only to errors of visitors.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = |error| E::custom(format!("{text:?}: {error}"));
        text.parse().map(Some).map_err(invalid)
    }
}
