//! The bytes that a link has received, with the time of the reading.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use crate::place::Place;

/// The counter of a link. It starts no program, so a busy machine hardly delays a reading.
#[derive(Debug)]
pub(crate) struct Counter {
    /// `/proc/net/dev` of the link's namespace.
    file: File,
    link: String,
}

impl Counter {
    pub(crate) fn of(place: &impl Place, link: &str) -> Self {
        let file = place.enter(|| File::open("/proc/thread-self/net/dev"));
        Self {
            file: file.unwrap(),
            link: link.to_owned(),
        }
    }

    /// Returns the bytes and the time. The kernel may interrupt the reading, so the most exact one of
    /// some readings counts.
    pub(crate) fn read(&mut self) -> (u64, Instant) {
        let readings = (0..READINGS).map(|_| self.read_once());
        let mut readings: Vec<_> = readings.collect();
        readings.sort_by_key(|(_, _, took)| *took);
        let (bytes, start, took) = readings[0];
        (bytes, start + took / 2)
    }

    fn read_once(&mut self) -> (u64, Instant, Duration) {
        let start = Instant::now();
        let mut text = String::new();
        self.file.rewind().unwrap();
        self.file.read_to_string(&mut text).unwrap();
        let took = start.elapsed();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let line = lines.find(|(name, _)| name.trim() == self.link);
        let (_, counters) = line.unwrap_or_else(|| panic!("no link {}", self.link));
        let bytes = counters.split_whitespace().next().unwrap();
        (bytes.parse().unwrap(), start, took)
    }
}

const READINGS: usize = 3;
