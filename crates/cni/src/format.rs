//! The format number in JSON files that only this suite writes and reads.

use serde::{Deserialize, Serialize};

/// The value 1 of the key `format` in a JSON file. Parsing fails for every other number, so a
/// plugin rejects a file that a later version of this suite wrote in another format. Files without
/// the key have format 1, so the field needs `#[serde(default)]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct FirstFormat;

impl TryFrom<u64> for FirstFormat {
    type Error = String;

    fn try_from(format: u64) -> Result<Self, String> {
        if format == FIRST {
            return Ok(Self);
        }
        Err(format!(
            "format {format} is of a later version; only format {FIRST} is known"
        ))
    }
}

impl From<FirstFormat> for u64 {
    fn from(_: FirstFormat) -> Self {
        FIRST
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
