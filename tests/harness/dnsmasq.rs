//! DHCP and router advertisements of a router.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::place::Place;

/// A dnsmasq that serves DHCP or router advertisements until this is dropped.
#[derive(Debug)]
pub struct Dnsmasq(Child);

impl Dnsmasq {
    /// Starts it on one link with these options; returns when it serves.
    pub fn start(place: &impl Place, link: &str, options: &[&str]) -> Self {
        let mut command = Command::new("dnsmasq");
        command.args(["--no-daemon", "--port=0", "--conf-file=/dev/null"]);
        if !options.iter().any(|it| it.starts_with("--dhcp-leasefile")) {
            command.arg("--leasefile-ro");
        }
        command.arg(format!("--interface={link}")).args(options);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let spawn = || command.spawn().expect("dnsmasq: install dnsmasq-base");
        let mut dnsmasq = place.enter(spawn);
        let mut told = BufReader::new(dnsmasq.stderr.take().unwrap()).lines();
        let serving = told.find(|line| line.as_ref().unwrap().contains(" DHCP"));
        assert!(serving.is_some(), "dnsmasq does not serve on {link}");
        thread::spawn(move || told.for_each(drop));
        Self(dnsmasq)
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
