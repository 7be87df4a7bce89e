//! A parser of `PromQL`, as far as the examples use it, that checks names of functions, types of
//! operands and labels (<https://prometheus.io/docs/prometheus/latest/querying/basics/>).

use std::collections::BTreeSet;

/// What an expression yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Scalar,
    Vector,
    Range,
}

/// A valid expression.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Names of metrics.
    pub metrics: BTreeSet<String>,
    /// Labels of selectors.
    pub matched: BTreeSet<String>,
    /// The labels that all aggregations keep; `None` without an aggregation.
    pub kept: Option<BTreeSet<String>>,
}

impl Query {
    /// Parses an expression. Panics with the rest of the text where it is not valid.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let mut parser = Parser {
            rest: text.trim_start(),
            query: Self::default(),
        };
        let kind = parser.binary(0);
        assert_eq!(kind, Type::Vector, "{text}");
        assert_eq!(parser.rest, "", "the end of {text}");
        parser.query
    }
}

struct Parser<'t> {
    rest: &'t str,
    query: Query,
}

/// Operators by precedence, the weakest first.
const OPERATORS: [&[&str]; 5] = [
    &["or"],
    &["and", "unless"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
];

const AGGREGATIONS: [&str; 6] = ["sum", "min", "max", "avg", "count", "topk"];

/// Functions with the types of their arguments.
const FUNCTIONS: [(&str, &[Type]); 3] = [
    ("rate", &[Type::Range]),
    ("increase", &[Type::Range]),
    ("histogram_quantile", &[Type::Scalar, Type::Vector]),
];

impl<'t> Parser<'t> {
    fn take(&mut self, text: &str) -> bool {
        let is_word = text.chars().all(char::is_alphabetic);
        let Some(rest) = self.rest.strip_prefix(text) else {
            return false;
        };
        if is_word && rest.starts_with(is_part_of_name) {
            return false;
        }
        self.rest = rest.trim_start();
        true
    }

    #[track_caller]
    fn expect(&mut self, text: &str) {
        assert!(self.take(text), "no {text:?} before {:?}", self.rest);
    }

    fn while_is(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|it| !belongs(it));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        word
    }

    fn binary(&mut self, level: usize) -> Type {
        let Some(operators) = OPERATORS.get(level) else {
            return self.operand();
        };
        let mut left = self.binary(level + 1);
        while operators.iter().any(|it| self.take(it)) {
            let right = self.binary(level + 1);
            let sides = [left, right];
            assert!(!sides.contains(&Type::Range), "{:?}", self.rest);
            if level < 2 {
                assert_eq!(sides, [Type::Vector; 2], "{:?}", self.rest);
            }
            left = if sides.contains(&Type::Vector) {
                Type::Vector
            } else {
                Type::Scalar
            };
        }
        left
    }

    fn operand(&mut self) -> Type {
        if self.take("(") {
            let kind = self.binary(0);
            self.expect(")");
            return kind;
        }
        if self.rest.starts_with(|it: char| it.is_ascii_digit()) {
            let number = self.while_is(|it| it.is_ascii_digit() || it == '.');
            number.parse::<f64>().expect(number);
            return Type::Scalar;
        }
        let name = self.while_is(is_part_of_name);
        let is_name = name.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_');
        assert!(is_name, "no operand before {:?}", self.rest);
        if AGGREGATIONS.contains(&name) {
            return self.aggregation(name);
        }
        if self.rest.starts_with('(') {
            return self.call(name);
        }
        self.selector(name)
    }

    fn aggregation(&mut self, name: &str) -> Type {
        if self.take("by") {
            self.expect("(");
            let labels: BTreeSet<_> = self.list(|it| it.while_is(is_part_of_name).to_owned());
            let before = self.query.kept.take();
            let both = before.map_or_else(|| labels.clone(), |it| &it & &labels);
            self.query.kept = Some(both);
        }
        self.expect("(");
        if name == "topk" {
            assert_eq!(self.binary(0), Type::Scalar, "{:?}", self.rest);
            self.expect(",");
        }
        assert_eq!(self.binary(0), Type::Vector, "{:?}", self.rest);
        self.expect(")");
        Type::Vector
    }

    fn call(&mut self, name: &str) -> Type {
        let known = FUNCTIONS.iter().find(|(it, _)| *it == name);
        let (_, expected) = known.unwrap_or_else(|| panic!("no function {name}"));
        self.expect("(");
        let arguments: Vec<_> = self.list(|it| it.binary(0));
        assert_eq!(arguments, *expected, "{name}");
        Type::Vector
    }

    /// Parses items up to the closing parenthesis.
    fn list<T, C: FromIterator<T>>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> C {
        let mut items = vec![item(self)];
        while self.take(",") {
            items.push(item(self));
        }
        self.expect(")");
        items.into_iter().collect()
    }

    fn selector(&mut self, name: &str) -> Type {
        self.query.metrics.insert(name.to_owned());
        if self.take("{") {
            while !self.take("}") {
                let label = self.while_is(is_part_of_name).to_owned();
                self.query.matched.insert(label);
                let operators = ["=~", "!~", "!=", "="];
                assert!(operators.iter().any(|it| self.take(it)), "{:?}", self.rest);
                self.expect("\"");
                self.while_is(|it| it != '"');
                self.expect("\"");
                let is_end = !self.take(",") && !self.rest.starts_with('}');
                assert!(!is_end, "{:?}", self.rest);
            }
        }
        if !self.take("[") {
            return Type::Vector;
        }
        let number = self.while_is(|it| it.is_ascii_digit());
        number.parse::<u32>().expect(self.rest);
        let unit = self.while_is(|it| it.is_ascii_alphabetic());
        assert!(["s", "m", "h", "d"].contains(&unit), "{unit:?}");
        self.expect("]");
        Type::Range
    }
}

fn is_part_of_name(it: char) -> bool {
    it.is_ascii_alphanumeric() || it == '_' || it == ':'
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn queries_have_metrics_and_labels() {
        let query = Query::parse(
            r#"topk(3, sum by (a, b) (rate(x_total{c="1", d=~"$e"}[5m]))) / sum by (b) (y) > 0.5 and z"#,
        );
        let texts =
            |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        assert_eq!(texts(&query.metrics), ["x_total", "y", "z"]);
        assert_eq!(texts(&query.matched), ["c", "d"]);
        assert_eq!(texts(&query.kept.unwrap()), ["b"]);
    }

    #[test]
    fn what_is_no_query_is_refused() {
        for text in [
            "",
            "1",
            "x[5m]",
            "rate(x)",
            "rate(x[5])",
            "rate(x[5m]",
            "rates(x[5m])",
            "sum by (a (x)",
            "sum by a (x)",
            "topk(x)",
            "x{a=1}",
            "x{a=\"1}",
            "x > ",
            "x and 1",
            "x y",
            "(x",
            "x + y[5m]",
            "histogram_quantile(x)",
        ] {
            let parsed = std::panic::catch_unwind(|| Query::parse(text));
            assert!(parsed.is_err(), "{text:?}");
        }
    }
}
