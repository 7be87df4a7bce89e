use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use prometheus_client::registry::Registry;

/// Encodes the registry many times while another thread calls `set` again and again. Panics if
/// `is_whole` returns false for one of the texts.
pub fn expect_whole(registry: &Registry, is_whole: impl Fn(&str) -> bool, set: impl Fn() + Sync) {
    let is_done = AtomicBool::new(false);
    set();
    let broken = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                set();
            }
        });
        let mut texts = (0..3_000).map(|_| text(registry));
        let broken = texts.find(|it| !is_whole(it));
        is_done.store(true, Ordering::Relaxed);
        broken
    });
    assert_eq!(broken, None);
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}
