//! Metrics in the text format of `OpenMetrics`, parsed as strictly as its specification 1.0 asks.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a sample: names and values.
pub type Labels = BTreeMap<String, String>;

/// The parsed text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Types of the families, by name.
    pub families: BTreeMap<String, String>,
    /// Values by the sample's name and labels. Sums of histograms are only checked, and count as 0.
    pub samples: BTreeMap<(String, Labels), u64>,
}

impl Metrics {
    /// Parses a whole text. Panics if the specification does not allow it.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("the end is `# EOF`");
        let mut metrics = Self::default();
        let mut family = String::new();
        let mut described = BTreeSet::new();
        for line in body.lines() {
            if let Some(words) = line.strip_prefix("# ") {
                let mut words = words.splitn(3, ' ').map(str::to_owned);
                let [kind, name, text] = [(); 3].map(|()| words.next().unwrap());
                assert!(described.insert((kind.clone(), name.clone())), "{line}");
                if kind == "TYPE" {
                    metrics.families.insert(name.clone(), text);
                } else if kind == "UNIT" {
                    assert!(name.ends_with(&text), "{line}");
                }
                family = name;
            } else {
                metrics.add(&family, line);
            }
        }
        metrics
    }

    fn add(&mut self, family: &str, line: &str) {
        let place = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(place);
        let suffixes: &[&str] = match self.families[family].as_str() {
            "gauge" => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => panic!("{other}: {line}"),
        };
        let suffix = name.strip_prefix(family).expect(line);
        assert!(suffixes.contains(&suffix), "{line}");
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest),
            None => (Labels::new(), rest),
        };
        let value = value.strip_prefix(' ').expect(line);
        let value = match suffix {
            "_sum" => value.parse::<f64>().map(|_| 0).expect(line),
            _ => value.parse::<u64>().expect(line),
        };
        let replaced = self.samples.insert((name.to_owned(), labels), value);
        assert_eq!(replaced, None, "a second sample: {line}");
    }

    /// Returns the values of the samples with this name and at least these labels.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<u64> {
        let has = |held: &Labels| {
            let mut labels = labels.iter();
            labels.all(|(key, value)| held.get(*key).is_some_and(|it| it == value))
        };
        let samples = self.samples.iter();
        let samples = samples.filter(|((it, held), _)| it == name && has(held));
        samples.map(|(_, value)| *value).collect()
    }

    /// Returns the value of the only sample with this name and at least these labels.
    #[track_caller]
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let values = self.all(name, labels);
        assert_eq!(values.len(), 1, "{name} {labels:?}: {:#?}", self.samples);
        values[0]
    }

    /// Returns all values of this label.
    pub fn values_of(&self, label: &str) -> BTreeSet<&str> {
        let labels = self.samples.keys().filter_map(|(_, it)| it.get(label));
        labels.map(String::as_str).collect()
    }

    /// Returns the names of all samples.
    pub fn names(&self) -> BTreeSet<&str> {
        self.samples.keys().map(|(name, _)| name.as_str()).collect()
    }
}

/// Parses labels after their opening brace. Returns them and the text after the closing brace.
fn labels(text: &str) -> (Labels, &str) {
    let (mut labels, mut rest) = (Labels::new(), text);
    while !rest.starts_with('}') {
        let (name, after) = rest.split_once("=\"").unwrap();
        let is_letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
        assert!(!name.is_empty() && name.chars().all(is_letter), "{text}");
        let (value, after) = value(after);
        assert_eq!(labels.insert(name.to_owned(), value), None, "{text}");
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    (labels, &rest[1..])
}

/// Parses a label's value up to its closing quotation mark.
fn value(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    loop {
        let (place, character) = characters.next().expect(text);
        match character {
            '"' => return (value, &text[place + 1..]),
            '\\' => value.push(match characters.next().expect(text).1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => panic!("an unknown escape: {text}"),
            }),
            character => {
                assert!(!character.is_control(), "{text:?}");
                value.push(character);
            }
        }
    }
}
