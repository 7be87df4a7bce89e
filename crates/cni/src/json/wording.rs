//! Words of an operator for what serde expected and found.

use serde::de::{Expected, Unexpected};
use serde_json::Value;

/// Returns the name that an operator knows for what serde expects.
pub(super) fn named(expected: &dyn Expected) -> String {
    let name = expected.to_string();
    let up_to = |most: u64| format!("a whole number from 0 to {most}");
    match name.as_str() {
        "u8" => up_to(u8::MAX.into()),
        "u16" => up_to(u16::MAX.into()),
        "u32" => up_to(u32::MAX.into()),
        "u64" => up_to(u64::MAX),
        "i32" | "i64" => "a whole number".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "a boolean" => "true or false".to_owned(),
        _ => name,
    }
}

/// Returns the value as the document has it, or the kind of a list or an object.
pub(super) fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => Value::from(text).to_string(),
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Unit => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}
