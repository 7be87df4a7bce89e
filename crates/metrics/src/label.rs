//! Values of metric labels. Some of them are names that users choose.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// The value of a label: a short text without control characters.
///
/// Users choose the values of labels: `CNI_ARGS` may contain any text as the name of a pod. A
/// control character could change the terminal of an operator, and Prometheus refuses a text with
/// the character 0. `prometheus-client` escapes quotation marks and backslashes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(Box<str>);

impl From<&str> for Text {
    /// Replaces control characters by U+FFFD, and shortens a longer text to 253 characters.
    fn from(text: &str) -> Self {
        let harmless = |it: char| if it.is_control() { REPLACEMENT } else { it };
        let characters = text.chars().take(LONGEST).map(harmless);
        Self(characters.collect::<String>().into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl EncodeLabelValue for Text {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

/// Maximum length of a label's value in characters: the length of the longest name in Kubernetes
/// (RFC 1123).
const LONGEST: usize = 253;

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_and_long_names_shortened() {
        let of = |text: &str| Text::from(text).0.into_string();
        assert_eq!(
            of("a\0b\n\u{1b}[2J\u{9b}ü\"\\"),
            "a\u{fffd}b\u{fffd}\u{fffd}[2J\u{fffd}ü\"\\"
        );
        assert_eq!(of(&"ü".repeat(300)), "ü".repeat(253));
    }
}
