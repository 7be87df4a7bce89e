//! Results: a table for people, an object for programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::timing::{Side, Times};

/// All tables so far.
#[derive(Default)]
pub struct Report {
    tables: Vec<Value>,
}

impl Report {
    /// Prints the times of both sides; the ratio compares their medians.
    pub fn times(&mut self, title: &str, sides: &[Side; 2]) {
        let [ours, reference] = sides;
        println!("\n{title}, milliseconds from start to exit\n");
        println!(
            "{:24}{:^34}{:^34}{:>8}",
            "", ours.name, reference.name, "median"
        );
        let columns = "   median     p95     min     max ";
        println!("{:24}{columns}{columns}{:>8}", "", "ratio");
        let mut rows = Vec::new();
        for (label, ours) in &ours.times {
            let mut times = reference.times.iter();
            let reference = times.find(|(other, _)| other == label).map(|it| &it.1);
            let ratio = reference.map(|it| it.median() / ours.median());
            match (reference, ratio) {
                (Some(reference), Some(ratio)) => {
                    println!("{label:24}{ours}{reference}{ratio:>7.1}x");
                }
                _ => println!("{label:24}{ours}{:>9}", "-"),
            }
            let reference = reference.map(Times::to_json);
            let ours = ours.to_json();
            rows.push(json!({"case": label, "ours": ours, "reference": reference, "ratio": ratio}));
        }
        self.values(title, "ms", &rows);
    }

    /// Adds values that are printed already.
    pub fn values(&mut self, title: &str, unit: &str, rows: &[Value]) {
        let table = json!({"title": title, "unit": unit, "rows": rows});
        self.tables.push(table);
    }

    /// Writes all tables, with the time and place of the measurement.
    pub fn write(&self, path: &Path, sides: &[Side; 2]) {
        let [ours, reference] = sides.each_ref().map(|side| side.directory.display());
        let report = json!({
            "date": output("date", &["--utc", "+%FT%TZ"]),
            "kernel": output("uname", &["-sr"]),
            "machine": output("uname", &["-m"]),
            "processors": std::thread::available_parallelism().unwrap(),
            "load": fs::read_to_string("/proc/loadavg").unwrap().trim(),
            "ours": ours.to_string(),
            "reference": reference.to_string(),
            "tables": self.tables,
        });
        fs::write(path, format!("{report:#}\n")).unwrap();
        println!("\nwritten to {}", path.display());
    }
}

fn output(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
