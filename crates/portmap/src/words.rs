//! Splits a condition in the syntax of nft(8) into words and values.

use std::iter::Peekable;
use std::vec::IntoIter;

pub(crate) struct Words<'t>(Peekable<IntoIter<&'t str>>);

impl<'t> Words<'t> {
    pub fn of(text: &'t str) -> Self {
        let mut words = Vec::new();
        let mut rest = text.trim_start();
        while let Some((word, after)) = rest.split_at_checked(length(rest)) {
            if word.is_empty() {
                break;
            }
            words.push(word);
            rest = after.trim_start();
        }
        Self(words.into_iter().peekable())
    }

    pub fn next(&mut self) -> Option<&'t str> {
        self.0.next()
    }

    /// Returns the next word if it is one of these.
    pub fn next_if(&mut self, words: &[&str]) -> Option<&'t str> {
        self.0.next_if(|it| words.contains(it))
    }

    /// Returns the next value, or the values of the set that follows. A range is one value.
    pub fn values(&mut self) -> Result<Vec<String>, String> {
        if self.next_if(&["{"]).is_none() {
            return Ok(vec![self.value()?]);
        }
        let mut values = vec![self.value()?];
        loop {
            match self.next() {
                Some("}") => return Ok(values),
                Some(",") if self.next_if(&["}"]).is_some() => return Ok(values),
                Some(",") => values.push(self.value()?),
                Some(word) => return Err(format!("expected , or }} before {word:?}")),
                None => return Err("the set is not closed by }".into()),
            }
        }
    }

    fn value(&mut self) -> Result<String, String> {
        let first = match self.next() {
            Some(word) if !SIGNS.contains(&word) => word,
            word => return Err(format!("{:?} is no value", word.unwrap_or_default())),
        };
        let last = self.next_if(&["-"]).map(|_| self.value()).transpose()?;
        Ok(match last {
            Some(last) => format!("{first}-{last}"),
            None => first.to_owned(),
        })
    }
}

/// Returns the length of the word at the start of `text` in bytes. A quote that is not closed is a
/// word of its own, which no condition accepts.
fn length(text: &str) -> usize {
    let ends = |it: char| it.is_whitespace() || "{},\"!=".contains(it);
    let mut letters = text.char_indices();
    match letters.next() {
        None => 0,
        Some((_, '{' | '}' | ',')) => 1,
        Some((_, '!' | '=')) => 1 + usize::from(letters.next().is_some_and(|it| it.1 == '=')),
        Some((_, '"')) => letters.find(|it| it.1 == '"').map_or(1, |it| it.0 + 1),
        Some(_) => text.find(ends).unwrap_or(text.len()),
    }
}

/// Words that are never a value.
const SIGNS: [&str; 8] = ["{", "}", ",", "!", "=", "!=", "==", "\""];
