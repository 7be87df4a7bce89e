//! Reads JSON with keys in any case.
//!
//! The Go plugins ignore the case of keys, and runtimes rely on that: containerd sends `HostPort`,
//! CRI-O `hostPort`. A key with the value `null` counts as absent.

mod wording;

use std::cell::RefCell;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::Error;

use self::wording::{named, shown};

/// A value parsed from JSON, and the keys of the JSON that the type `T` does not have.
#[derive(Debug)]
pub struct Read<T> {
    /// The `T` that was parsed from the JSON.
    pub value: T,
    /// Keys that `T` does not have, each with its parents: `ipam.ranges[0][1].subnetz`.
    pub unknown: Vec<String>,
}

/// Parses `value` as `T`, with keys in upper or lower case. `at` is the path of `value` in the
/// document, for messages and for [`Read::unknown`]; it is empty for the whole document.
///
/// `T` must derive `Deserialize` with the canonical spelling of its keys and without `flatten`.
/// Keys of maps keep their case, since they are data. A field called `*` receives the unknown keys
/// of its object; [`Read::unknown`] does not list these.
///
/// # Errors
/// [`Error::InvalidConfig`] with the key whose value has the wrong type.
pub fn read<T: DeserializeOwned>(value: &Value, at: &str) -> Result<Read<T>, Error> {
    let unknown = RefCell::default();
    let node = Node {
        value,
        at: at.to_owned(),
        left_out: &[],
        unknown: &unknown,
    };
    let read = T::deserialize(node).map_err(|Mismatch { at, reason }| {
        let key = at.filter(|key| !key.is_empty());
        Error::invalid(key.unwrap_or_else(|| "configuration".into()), reason)
    });
    Ok(Read {
        value: read?,
        unknown: unknown.into_inner(),
    })
}

/// Returns the value of `key`, which the object may spell in any case. The exact spelling takes
/// precedence. Returns `None` for an absent key and for the value `null`.
pub fn value<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let (_, value) = entry(object, key)?;
    Some(value).filter(|value| !value.is_null())
}

/// Removes `key` from `object` and returns its value. The object may spell `key` in any case, and
/// the exact spelling takes precedence. Returns `None` for an absent key and for the value `null`.
pub(crate) fn take(object: &mut Map<String, Value>, key: &str) -> Option<Value> {
    let (name, _) = entry(object, key)?;
    let name = name.clone();
    object.remove(&name).filter(|value| !value.is_null())
}

/// Returns `key` as the object spells it, and its value, which may be `null`. The object may spell
/// `key` in any case, and the exact spelling takes precedence. Returns `None` if the object has no
/// such key.
pub(crate) fn entry<'a>(
    object: &'a Map<String, Value>,
    key: &str,
) -> Option<(&'a String, &'a Value)> {
    let is_folded = |(name, _): &(&String, &Value)| name.eq_ignore_ascii_case(key);
    let exact = object.get_key_value(key);
    exact.or_else(|| object.iter().find(is_folded))
}

/// Returns whether `value` is neither `null` nor an empty list.
pub(crate) fn is_set(value: &Value) -> bool {
    !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty())
}

/// A JSON value and its path in the document. [`read`] uses it as the serde deserializer.
struct Node<'a> {
    value: &'a Value,
    at: String,
    /// Keys of the object to skip. The field `*` reads the object of its struct again, so it must
    /// skip the keys that the other fields read. For all other values, this list is empty.
    left_out: &'static [&'static str],
    unknown: &'a RefCell<Vec<String>>,
}

impl<'a> Node<'a> {
    fn key(&self, name: &str, value: &'a Value) -> Self {
        let at = match self.at.as_str() {
            "" => name.to_owned(),
            parent => format!("{parent}.{name}"),
        };
        self.below(at, value)
    }

    fn element(&self, index: usize, value: &'a Value) -> Self {
        self.below(format!("{}[{index}]", self.at), value)
    }

    fn below(&self, at: String, value: &'a Value) -> Self {
        let left_out = &[];
        Self {
            value,
            at,
            left_out,
            ..*self
        }
    }

    /// Returns the keys of the value, a JSON object, that match none of `fields` even if upper and
    /// lower case count as equal, with the values of these keys. Returns no keys if the value is
    /// not an object.
    fn unknown(&self, fields: &[&str]) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let all = self.value.as_object().into_iter().flatten();
        let is_known = |key: &str| {
            let mut fields = fields.iter().filter(|field| **field != REST);
            fields.any(|field| field.eq_ignore_ascii_case(key))
        };
        all.filter(move |(key, _)| !is_known(key))
            .map(|(key, value)| (key.as_str(), value))
    }
}

impl<'de> IntoDeserializer<'de, Mismatch> for Node<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> de::Deserializer<'de> for Node<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        let read = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::String(value) => visitor.visit_str(value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::Array(values) => {
                let elements = values.iter().enumerate();
                let nodes = elements.map(|(index, value)| self.element(index, value));
                visitor.visit_seq(SeqDeserializer::new(nodes))
            }
            Value::Object(_) => {
                let entries = self.unknown(self.left_out);
                let nodes = entries.map(|(key, value)| (key, self.key(key, value)));
                visitor.visit_map(MapDeserializer::new(nodes))
            }
        };
        read.map_err(|mismatch: Mismatch| mismatch.inside(&self.at))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        let Value::Object(object) = self.value else {
            let reason = format!("expected an object, found {}", self.value);
            return Err(Mismatch { at: None, reason }.inside(&self.at));
        };
        let nodes = fields.iter().filter_map(|field| {
            let node = match *field {
                REST => Node {
                    left_out: fields,
                    at: self.at.clone(),
                    ..self
                },
                field => self.key(field, value(object, field)?),
            };
            Some((*field, node))
        });
        if !fields.contains(&REST) {
            let unknown = self.unknown(fields);
            let paths = unknown.map(|(key, value)| self.key(key, value).at);
            self.unknown.borrow_mut().extend(paths);
        }
        let read = visitor.visit_map(MapDeserializer::new(nodes));
        read.map_err(|mismatch: Mismatch| mismatch.inside(&self.at))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        let read = de::Deserializer::deserialize_enum(self.value, name, variants, visitor);
        read.map_err(|error| <Mismatch as de::Error>::custom(error).inside(&self.at))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The error for a value of the wrong type. `at` is the path of the value. The visitor that creates
/// the error does not know the path, so the innermost [`Node`] around the value sets it.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
struct Mismatch {
    at: Option<String>,
    reason: String,
}

impl Mismatch {
    /// Sets the path to `at`, unless an inner [`Node`] has set it already.
    fn inside(mut self, at: &str) -> Self {
        self.at.get_or_insert_with(|| at.to_owned());
        self
    }
}

impl de::Error for Mismatch {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        let reason = reason.to_string();
        Self { at: None, reason }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "expected {}, found {}",
            named(expected),
            shown(found)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}

/// Name of the field that receives the unknown keys of its object.
const REST: &str = "*";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Mapping {
        host_port: u16,
        labels: BTreeMap<String, String>,
    }

    impl Default for Mapping {
        fn default() -> Self {
            Self {
                host_port: 1,
                labels: BTreeMap::new(),
            }
        }
    }

    #[derive(Debug, Deserialize)]
    struct Config {
        mappings: Vec<Vec<Mapping>>,
    }

    #[test]
    fn keys_match_in_any_case_and_keys_of_maps_keep_theirs() {
        let document =
            json!({"MAPPINGS": [[{"HostPort": 80, "Labels": {"Aa": "b"}}, {"hostport": null}]]});
        let config = read::<Config>(&document, "").unwrap();
        let mapping = &config.value.mappings[0][0];
        assert_eq!(
            (mapping.host_port, mapping.labels["Aa"].as_str()),
            (80, "b")
        );
        assert_eq!(config.value.mappings[0][1], Mapping::default());
        assert!(config.unknown.is_empty());
    }

    #[test]
    fn exact_spelling_wins_over_another_case() {
        let document = json!({"HostPort": 1, "hostPort": 2, "hostport": 3});
        assert_eq!(read::<Mapping>(&document, "").unwrap().value.host_port, 2);
    }

    #[test]
    fn unknown_keys_are_reported_with_their_parents() {
        let document = json!({"mappings": [[{"hostPrt": 80}]], "other": {}});
        let unknown = read::<Config>(&document, "args").unwrap().unknown;
        assert_eq!(unknown, ["args.other", "args.mappings[0][0].hostPrt"]);
    }

    #[test]
    fn wrong_type_names_the_key() {
        for (document, key) in [
            (
                json!({"mappings": [[{"hostPort": "80"}]]}),
                "mappings[0][0].hostPort: ",
            ),
            (json!({"mappings": [{"hostPort": 80}]}), "mappings[0]: "),
            (
                json!({"mappings": [[{"hostPort": 70000}]]}),
                "mappings[0][0].hostPort: ",
            ),
            (json!({}), "configuration: missing field"),
            (json!([1]), "configuration: "),
        ] {
            let error = read::<Config>(&document, "").unwrap_err();
            assert_eq!(error.code(), 7);
            assert!(error.to_string().starts_with(key), "{error}");
        }
    }

    #[test]
    fn wrong_types_have_the_names_of_json() {
        for (mapping, reason) in [
            (
                json!({"hostPort": "20M"}),
                "a whole number from 0 to 65535, found \"20M\"",
            ),
            (
                json!({"hostPort": 70000}),
                "a whole number from 0 to 65535, found 70000",
            ),
            (
                json!({"hostPort": -1}),
                "a whole number from 0 to 65535, found -1",
            ),
            (
                json!({"hostPort": 1.5}),
                "a whole number from 0 to 65535, found 1.5",
            ),
            (
                json!({"hostPort": [1]}),
                "a whole number from 0 to 65535, found a list",
            ),
            (json!({"labels": "a=b"}), "an object, found \"a=b\""),
        ] {
            let error = read::<Mapping>(&mapping, "").unwrap_err().to_string();
            assert!(error.ends_with(&format!(": expected {reason}")), "{error}");
        }
        let flat = read::<Config>(&json!({"mappings": [{}]}), "").unwrap_err();
        assert_eq!(
            flat.to_string(),
            "mappings[0]: expected a list, found an object"
        );
    }

    #[test]
    fn taking_a_key_leaves_the_others() {
        let mut object = json!({"IPs": [], "x": 1}).as_object().unwrap().clone();
        assert_eq!(take(&mut object, "ips"), Some(json!([])));
        assert_eq!(take(&mut object, "ips"), None);
        assert_eq!(object.len(), 1);
    }
}
