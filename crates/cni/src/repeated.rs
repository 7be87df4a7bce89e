//! Finds keys that occur twice in a JSON object. [`serde_json::Value`] cannot show this, because it
//! keeps only the last value of each key.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Returns a key that occurs twice in the object under the top-level key `at`. Returns `None` if no
/// key does. The document may spell `at` in any case.
pub(crate) fn key(document: &[u8], at: &str) -> Option<String> {
    let Entries(top) = serde_json::from_slice::<Entries<Member>>(document).ok()?;
    let objects = top.into_iter().filter_map(|(name, member)| match member {
        Member::Object(Entries(entries)) if name.eq_ignore_ascii_case(at) => Some(entries),
        _ => None,
    });
    let mut seen = BTreeSet::new();
    let mut keys = objects.flatten().map(|(key, _)| key);
    keys.find(|key| !seen.insert(key.clone()))
}

/// The keys and values of a JSON object, in the order of the text and with repeated keys.
struct Entries<T>(Vec<(String, T)>);

/// A value of the top-level object. Only a value that is itself an object keeps its content.
#[derive(Deserialize)]
#[serde(untagged)]
enum Member {
    Object(Entries<IgnoredAny>),
    Other(IgnoredAny),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entry(PhantomData))
    }
}

struct Entry<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entry<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_key_is_found_in_the_named_object_only() {
        let found = |document: &str| key(document.as_bytes(), "sysctl");
        assert_eq!(
            found(r#"{"sysctl": {"a": "1", "b": "2", "a": "1"}}"#).as_deref(),
            Some("a")
        );
        assert_eq!(
            found(r#"{"SYSCTL": {"b": "1", "b": "2"}}"#).as_deref(),
            Some("b")
        );
        for document in [
            r#"{"sysctl": {"a": "1", "A": "2"}, "x": {"a": 1, "a": 2}, "x": 1}"#,
            r#"{"sysctl": [1, 1]}"#,
            "{}",
            "1",
        ] {
            assert_eq!(found(document), None, "{document}");
        }
    }
}
