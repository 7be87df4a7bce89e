//! `CNI_ARGS`: `KEY=value` pairs separated by semicolons.

use crate::Error;

/// The arguments in `CNI_ARGS`, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniArgs(Vec<(String, String)>);

impl CniArgs {
    /// Parses `text`, the value of `CNI_ARGS`. An empty text contains no arguments.
    ///
    /// # Errors
    /// [`Error::Environment`] if a pair does not contain exactly one `=`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let pairs = text.split(';').map(|pair| match pair.split_once('=') {
            Some((key, value)) if !value.contains('=') => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Error::Environment(format!(
                "CNI_ARGS: {pair:?} is not of the form KEY=value"
            ))),
        });
        Ok(Self(pairs.collect::<Result<_, _>>()?))
    }

    /// Returns the value of `key`, the last one if the key occurs several times. Returns `None` if
    /// the key is missing.
    pub fn value(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Checks that the arguments contain only `known` keys. Accepts all keys if the argument
    /// `IgnoreUnknown` is `1` or `true`.
    ///
    /// # Errors
    /// [`Error::Environment`] with every unknown key.
    pub fn expect_only(&self, known: &[&str]) -> Result<(), Error> {
        if self.value("IgnoreUnknown").is_some_and(is_true) {
            return Ok(());
        }
        let mut keys: Vec<_> = self.0.iter().map(|(key, _)| key.as_str()).collect();
        keys.retain(|key| !known.contains(key) && *key != "IgnoreUnknown");
        if keys.is_empty() {
            return Ok(());
        }
        Err(Error::Environment(format!(
            "CNI_ARGS: unknown keys {}; known are {}; add IgnoreUnknown=1 to pass others",
            keys.join(", "),
            known.join(", "),
        )))
    }
}

/// Returns whether `text` is `1` or `true`, in upper or lower case.
pub(crate) fn is_true(text: &str) -> bool {
    text == "1" || text.eq_ignore_ascii_case("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_and_the_last_one_wins() {
        let args = CniArgs::parse("IP=192.0.2.7;IgnoreUnknown=1;IP=192.0.2.8").unwrap();
        assert_eq!(args.value("IP"), Some("192.0.2.8"));
        assert_eq!(args.value("MAC"), None);
        assert_eq!(CniArgs::parse("").unwrap(), CniArgs::default());
    }

    #[test]
    fn malformed_pairs_are_refused_whatever_is_ignored() {
        for text in ["A", "A=1;", "IgnoreUnknown=1;A=1=2", ";"] {
            let error = CniArgs::parse(text).unwrap_err();
            assert_eq!(error.code(), 4, "{text}");
        }
    }

    #[test]
    fn unknown_keys_pass_only_where_asked() {
        let strict = CniArgs::parse("MAC=02:00:00:00:00:01;POD=a").unwrap();
        let error = strict.expect_only(&["MAC"]).unwrap_err().to_string();
        assert!(
            error.contains("POD") && !error.contains("keys MAC"),
            "{error}"
        );
        assert!(strict.expect_only(&["MAC", "POD"]).is_ok());
        let lenient = CniArgs::parse("POD=a;IgnoreUnknown=TRUE").unwrap();
        assert!(lenient.expect_only(&[]).is_ok());
        let off = CniArgs::parse("POD=a;IgnoreUnknown=0").unwrap();
        assert!(off.expect_only(&[]).is_err());
    }
}
