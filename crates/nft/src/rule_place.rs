//! Places of rules in their chains. The comment of each rule contains its place.
//!
//! The rules of a table may differ between two releases of this suite, so a release cannot compare
//! the rules of another release with its own rules. The places still show whether a chain has all
//! rules that the other release wrote, and no other rules.

/// Returns the end of the comment of rule `number` in a chain of `count` rules, as in
/// `from pods [7f39dbf6 2/5]`. The first rule has the number 1.
pub(crate) fn place(number: usize, count: usize) -> String {
    format!(" {number}/{count}]")
}

/// Returns whether a chain has exactly the rules that one release wrote: it has rules, and their
/// places are `1/n`, `2/n` to `n/n`, in this order, where `n` is the number of rules. `comments`
/// are the comments of the chain's rules, in order; `None` for a rule without a comment.
pub(crate) fn is_complete(comments: &[Option<String>]) -> bool {
    let count = comments.len();
    let mut rules = comments.iter().zip(1..);
    let is_in_place = |(comment, number): (&Option<String>, usize)| {
        let comment = comment.as_deref().unwrap_or_default();
        comment.ends_with(&place(number, count))
    };
    count > 0 && rules.all(is_in_place)
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
