//! The version of the format of a file that only this suite reads.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The first format of a file: the value of its key `format`. A file without this key has the first
/// format, too. A file of a later format cannot be parsed, even if it has all keys of the first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FirstFormat;

impl<'de> Deserialize<'de> for FirstFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            FIRST => Ok(Self),
            later => Err(D::Error::custom(format!(
                "format {later} is of a later version; only format {FIRST} is known"
            ))),
        }
    }
}

impl Serialize for FirstFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(FIRST)
    }
}

const FIRST: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Text {
        #[serde(default)]
        format: FirstFormat,
        key: u32,
    }

    #[test]
    fn only_the_first_format_is_parsed() {
        let text: Text = serde_json::from_str(r#"{"key":7}"#).unwrap();
        let written = serde_json::to_string(&text).unwrap();
        assert_eq!(written, r#"{"format":1,"key":7}"#);
        assert_eq!(serde_json::from_str::<Text>(&written).unwrap().key, 7);
        for format in ["2", "0", "\"1\"", "null"] {
            let text = format!(r#"{{"format":{format},"key":7}}"#);
            serde_json::from_str::<Text>(&text).unwrap_err();
        }
    }
}
