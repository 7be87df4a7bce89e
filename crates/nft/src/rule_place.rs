//! Places of rules in their chains. The comment of each rule contains its place.
//!
//! The rules of a table may differ between two releases of this suite, so a release cannot compare
//! the rules of another release with its own rules. The places still show whether a chain has all
//! rules that the other release wrote, and no other rules.

use std::fmt;

/// Place of a rule in its chain. The rule's comment ends with the place, as in `[7f39dbf6 2/5]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the rule; the first rule has 1.
    pub number: usize,
    /// Number of rules in the chain.
    pub count: usize,
}

impl Place {
    /// Returns the place at the end of a rule's comment. Returns `None` if there is no place:
    /// another program wrote the rule.
    fn read(comment: &str) -> Option<Self> {
        let (_, place) = comment.strip_suffix(']')?.rsplit_once(' ')?;
        let (number, count) = place.split_once('/')?;
        Some(Self {
            number: number.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

/// Returns whether a chain has exactly the rules that one release wrote: it has rules, and their
/// places are `1/n`, `2/n` to `n/n`, in this order, where `n` is the number of rules. `comments`
/// are the comments of the chain's rules, in order; `None` for a rule without a comment.
pub(crate) fn is_complete(comments: &[Option<String>]) -> bool {
    let count = comments.len();
    let places = comments.iter().map(|it| Place::read(it.as_deref()?));
    let wanted = (1..=count).map(|number| Some(Place { number, count }));
    count > 0 && places.eq(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(comments: &[&str]) -> bool {
        let comments: Vec<_> = comments.iter().map(|it| Some((*it).to_owned())).collect();
        is_complete(&comments)
    }

    #[test]
    fn chain_is_complete_with_all_places_in_order() {
        let (first, second) = ("from pods [7f39dbf6 1/2]", "to pods [00000000 2/2]");
        assert!(complete(&[first, second]) && complete(&["x [7f39dbf6 1/1]"]));
        for incomplete in [
            &[][..],
            &[first],
            &[second],
            &[second, first],
            &[first, first],
            &[first, second, second],
            &[first, "of another program"],
            &[first, "to pods [00000000]"],
            &[first, "to pods [00000000 2/3]"],
            &["x [7f39dbf6 -1/1]"],
            &["x [7f39dbf6 1/1] y"],
        ] {
            assert!(!complete(incomplete), "{incomplete:?}");
        }
        assert!(!is_complete(&[None]));
    }
}
